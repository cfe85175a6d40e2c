"""A script of Hugging Face's Trainer: HfArgumentParser, a tiny random model, its last checkpoint."""

import os
from dataclasses import dataclass

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint


@dataclass
class ModelArguments:
    hidden_size: int = 16
    samples: int = 64


class Parity(torch.utils.data.Dataset):
    def __init__(self, count):
        self.ids = torch.randint(0, 50, (count, 12), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i, 0] % 2}


def main():
    model_args, args = HfArgumentParser(
        (ModelArguments, TrainingArguments)
    ).parse_args_into_dataclasses()
    set_seed(args.seed)
    config = BertConfig(
        vocab_size=50, hidden_size=model_args.hidden_size, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=32, num_labels=2,
    )  # fmt: skip
    data = Parity(model_args.samples)
    trainer = Trainer(
        model=BertForSequenceClassification(config), args=args, train_dataset=data,
        eval_dataset=data,
    )  # fmt: skip
    last = get_last_checkpoint(args.output_dir) if os.path.isdir(args.output_dir) else None
    result = trainer.train(resume_from_checkpoint=last)
    trainer.save_model()
    trainer.log_metrics("train", result.metrics)
    trainer.save_metrics("train", result.metrics)
    trainer.save_metrics("eval", trainer.evaluate())
    trainer.save_state()


if __name__ == "__main__":
    main()
