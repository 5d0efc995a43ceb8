"""A small convolutional classifier with BatchNorm for 8x8 images, with pipeline markers."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import pipe_split


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


class Digits(nn.Module):
    """Maps images [N, 1, 8, 8] to logits [N, 10]."""

    def __init__(self, channels=16):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
        self.block1 = Residual(channels, channels, 1)
        self.block2 = Residual(channels, 2 * channels, 2)
        self.block3 = Residual(2 * channels, 4 * channels, 2)
        self.head = nn.Linear(4 * channels, 10)

    def forward(self, images):
        x = self.stem(images)
        for block in (self.block1, self.block2, self.block3):
            pipe_split()
            x = block(x)
        return self.head(x.mean((2, 3)))


def build():
    torch.manual_seed(0)
    return Digits()
