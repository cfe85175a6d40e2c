"""A script of DeepSpeed: its own arguments, `initialize` and ZeRO."""

import argparse

import deepspeed
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()

deepspeed.init_distributed()
torch.manual_seed(0)
config = {
    "train_micro_batch_size_per_gpu": 16,
    "zero_optimization": {"stage": 1},
    "optimizer": {"type": "Adam", "params": {"lr": 0.05, "torch_adam": True}},
    "bf16": {"enabled": False},
}
model = torch.nn.Linear(4, 1)
engine, _, _, _ = deepspeed.initialize(
    args=args, model=model, model_parameters=model.parameters(), config=config
)
torch.manual_seed(engine.global_rank)
for _ in range(20):
    x = torch.rand(16, 4).to(engine.device)
    loss = (engine(x) - x.sum(dim=1, keepdim=True)).square().mean()
    engine.backward(loss)
    engine.step()
engine.save_checkpoint("checkpoints")
print(f"rank {engine.global_rank} on {engine.world_size}: loss {loss.item():.4f}")
