"""JPEG decoded by nvJPEG on the GPU, in batches; what it does not take is decoded on the CPU."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from headrace.data.decode import CropOf, Decoder, Lend, num_cores
from headrace.data.sampling import Indices
from headrace.fields import jpeg
from headrace.files.manifest import FieldInfo
from headrace.shards.dataset import ShardedDataset

# the GPU's own engine for JPEG would share batches with its cores: a file could give two results
_BACKENDS = {"cuda": ("GPU_ONLY", "HYBRID_CPU_GPU")}
_CPU = "the CPU"


class DeviceDecoder(Decoder):
    """Decodes JPEG in colours onto a device, once it is opened; pixels may differ from the CPU's.

    Grey JPEG, files that EXIF turns and all that the library does not take are left to the CPU.
    """

    _library: Any = None
    _num_left = 0

    def open(self, device: torch.device, notes: dict[str, str]) -> None:
        """Decode on a device from now on; `notes` get the decoder, or why the CPU decodes."""
        self._device, self._notes, self._lock = device, notes, threading.Lock()
        try:
            notes["decoder"] = self._opened(nvimgcodec())
        except RuntimeError as error:
            notes["decoder"] = f"{_CPU}: {error}"

    def _opened(self, library: ModuleType | None) -> str:
        device = self._device
        if device.type not in _BACKENDS:
            raise RuntimeError("no GPU is in use")
        if library is None:
            raise RuntimeError("nvimgcodec is missing: pip install 'headrace[photos]'")
        kinds = (getattr(library.BackendKind, kind) for kind in _BACKENDS[device.type])
        first = library.NVIMGCODEC_DEVICE_CPU_ONLY if device.type == "cpu" else 0
        self._library = library.Decoder(
            device_id=device.index or first,
            backends=[library.Backend(kind) for kind in kinds],
            max_num_cpu_threads=num_cores(),
        )
        self._unturned = library.DecodeParams(apply_exif_orientation=False)
        return f"nvimgcodec {library.__version__} on {device.type}"

    def decode(
        self,
        dataset: ShardedDataset,
        info: FieldInfo,
        indices: Indices,
        lend: Lend | None = None,
        crop: CropOf | None = None,
    ) -> list[Any] | Tensor:
        """Read and decode as `Decoder`; images lie on the device, one tensor each."""
        is_whole = lend is not None and crop is None
        if not is_whole or self._library is None or info.encoding not in ("jpeg", "image"):
            return super().decode(dataset, info, indices, lend, crop)
        with dataset.holding(indices):
            files = [item.tobytes() for item in dataset.items(info.name, indices)]
        found = self._decoded(files, turns=info.orientation == "apply")
        if left := [at for at in range(len(files)) if at not in found]:
            others = super().decode(dataset, info, indices[left])
            tensors = (torch.as_tensor(array).to(self._device) for array in others)
            found.update(zip(left, tensors, strict=True))
            self._num_left += len(left)
            self._notes["decoded_by_cpu"] = f"{self._num_left:,} images"
        return [found[at] for at in range(len(files))]

    def _decoded(self, files: list[bytes], *, turns: bool) -> dict[int, Tensor]:
        headers = ((at, jpeg.read_header(file)) for at, file in enumerate(files))
        places = [at for at, h in headers if h and h.channels == 3 and not (turns and h.may_turn)]
        chosen, is_gpu = [files[at] for at in places], self._device.type == "cuda"
        stream = torch.cuda.current_stream(self._device).cuda_stream if is_gpu else 0
        try:
            with self._lock:  # a decoder of the library belongs to one thread at a time
                images = self._library.decode(chosen, params=self._unturned, cuda_stream=stream)
        except RuntimeError:  # such as memory that ran out
            return {}
        # by DLPack on a GPU only: the library's needs CUDA
        convert: Callable[[Any], Any] = from_dlpack if is_gpu else np.array
        both = zip(places, images, strict=True)
        return {at: torch.as_tensor(convert(image)) for at, image in both if image is not None}


@cache
def nvimgcodec() -> ModuleType | None:
    """Import the library (extra `photos`) without what it writes where CUDA lacks; None without."""
    os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        from nvidia import nvimgcodec as library
    except ImportError:
        return None
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
    found: ModuleType = library
    return found


def decoder_in(notes: dict[str, str]) -> str:
    """Return the name of the decoder, without the reason for it."""
    return notes.get("decoder", _CPU).partition(":")[0]


def note_change(notes: dict[str, str], state: Mapping[str, Any]) -> None:
    """Note it if the checkpoint with this state of the data module had another decoder."""
    before, now = state.get("decoder", _CPU), decoder_in(notes)
    if before != now:
        notes["decoder_changed"] = f"from {before} to {now}, whose pixels may differ"
