"""Reading a distributed checkpoint without letting it run code.

`torch.distributed.checkpoint` keeps its index, `.metadata`, as a pickle, and a pickle may call anything. The index of
our checkpoints names tensors only, so this reader knows a dozen classes of plain data and refuses every other name.
Entries of arbitrary objects are among the refused: torch would unpickle those too. Left out: checkpoints of others.
"""

from __future__ import annotations

import pathlib
import pickle
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader, filesystem, metadata

KNOWN: dict[tuple[str, str], Any] = {
    (kind.__module__, kind.__qualname__): kind
    for kind in (
        metadata.Metadata,
        metadata.TensorStorageMetadata,
        metadata.ChunkStorageMetadata,
        metadata.MetadataIndex,
        metadata.TensorProperties,
        metadata.StorageMeta,
        metadata._MEM_FORMAT_ENCODING,
        filesystem._StorageInfo,
        pathlib.PosixPath,
        pathlib.WindowsPath,
        torch.Size,
    )
}
KNOWN |= {("torch", name): kind for name, kind in vars(torch).items() if isinstance(kind, torch.dtype)}
KNOWN[("torch.serialization", "_get_layout")] = torch.serialization._get_layout


class DataOnly(pickle.Unpickler):
    """An unpickler that knows the names in KNOWN and no other."""

    def find_class(self, module: str, name: str) -> Any:
        """The class called so; UnpicklingError for any that is not plain data of a checkpoint's index."""
        if (module, name) not in KNOWN:
            raise pickle.UnpicklingError(
                f"its index asks for {module[:40]}.{name[:40]}, which may run code, so it isn't read"
            )
        return KNOWN[(module, name)]


class SafeReader(FileSystemReader):
    """torch's reader of a folder of shards, with an index that can only be data."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> metadata.Metadata:
        """The index. ValueError, with the reason, for anything but the data of one."""
        path = self._get_metadata_path(kwargs.get("rank"))
        try:
            with self.fs.create_stream(path, "rb") as file:
                found = DataOnly(file).load()
        except OSError:
            raise
        except Exception as error:  # a damaged pickle can raise nearly everything
            raise ValueError(f"the index {pathlib.Path(path).name} is no index ({error})") from error
        if not isinstance(found, metadata.Metadata) or not found.storage_data:
            raise ValueError(
                f"the index {pathlib.Path(path).name} is no index (it holds {type(found).__name__})"
            )
        about = getattr(found, "storage_meta", None) or metadata.StorageMeta()
        about.load_id = self.load_id
        found.storage_meta = about
        return found
