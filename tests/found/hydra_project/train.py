"""A project of Hydra: a folder of configuration beside the script, files in its `outputs/`."""

import json
import logging
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from sklearn.datasets import load_iris
from sklearn.model_selection import cross_val_score

log = logging.getLogger(__name__)


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    model = hydra.utils.instantiate(config.model)
    log.info("%s: %r", config.title, model)
    scores = cross_val_score(model, *load_iris(return_X_y=True), cv=config.data.folds)
    folder = Path(HydraConfig.get().runtime.output_dir)
    (folder / "scores.json").write_text(json.dumps(list(scores)))


if __name__ == "__main__":
    main()
