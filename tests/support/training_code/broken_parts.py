"""A model and a logger that break, in their rank, what only informs of a training."""

from blob_models import BlobModel
from breaking import broken
from lightning.pytorch.loggers.logger import DummyLogger

from headrace import informing, loggers
from headrace.steps import history
from headrace.training import history_writer


class BrokenModel(BlobModel):
    def __init__(self, fault, **arguments):
        super().__init__(**arguments)
        patience_s = 0.1 if fault == "hangs" else 60.0
        informing.inform.__defaults__ = (None, patience_s)
        loggers._WITHIN_S = dict.fromkeys(loggers._WITHIN_S, patience_s)
        history_writer._LEAST_USAGE_S = 0.0
        history_writer.Usage.look = broken(fault)
        history_writer.RankUsage.look = broken(fault)
        history.append_line = broken(fault)
        history_writer.KeepHistory._measure = broken("raises")


class Logs(DummyLogger):
    def __init__(self, fault):
        super().__init__()
        self.log_metrics = broken(fault)
        self.save = self.finalize = broken(fault)
