"""User code of the training tests: a model that notes where its rank listens."""

import json
from pathlib import Path

import psutil
import torch
from blob_models import BlobModel


class ListeningModel(BlobModel):
    """Writes `listening-<rank>.json`, a list of addresses and ports, when training starts."""

    def on_train_start(self):
        torch.distributed.barrier()
        own = [one for one in psutil.Process().net_connections() if one.status == "LISTEN"]
        found = [(one.laddr.ip, one.laddr.port) for one in own]
        (Path(self.notes) / f"listening-{self.global_rank}.json").write_text(json.dumps(found))
