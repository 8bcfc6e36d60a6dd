"""The exercises of the lessons, one module lessonNN.py each, found and imported by logra_lab.lab.checks."""
