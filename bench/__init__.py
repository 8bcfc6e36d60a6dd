"""What a step costs on this machine's CPU, measured side by side: `make bench`."""
