"""A network: any `nn.Module`; arguments named as in MONAI are filled in from the data."""

from torch import Tensor, nn


class TinyNet(nn.Module):
    """Three convolutions, for tests."""

    def __init__(
        self, in_channels: int, out_channels: int, spatial_dims: int, width: int = 8
    ) -> None:
        super().__init__()
        conv = nn.Conv2d if spatial_dims == 2 else nn.Conv3d
        self.layers = nn.Sequential(
            conv(in_channels, width, 3, padding=1),
            nn.ReLU(),
            conv(width, width, 3, padding=1),
            nn.ReLU(),
            conv(width, out_channels, 1),
        )

    def forward(self, image: Tensor) -> Tensor:
        return self.layers(image)
