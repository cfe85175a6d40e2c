"""A loop of `accelerate`: what it prepares runs on one rank or many."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--num_epochs", type=int, default=2)
parser.add_argument("--lr", type=float, default=1e-2)
parser.add_argument("--output_dir", default="out")
args = parser.parse_args()

accelerator = Accelerator(cpu=not torch.cuda.is_available())
set_seed(42)
x = torch.rand(128, 4)
loader = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=16, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), args.lr)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(args.num_epochs):
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.print(f"epoch {epoch} on {accelerator.num_processes}: loss {loss.item():.4f}")
    accelerator.wait_for_everyone()
    accelerator.save_state(f"{args.output_dir}/epoch_{epoch}")
accelerator.end_training()
