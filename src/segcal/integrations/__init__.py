"""segcal inside other people's frameworks: `monai`, `torchmetrics` and `nnunet`.

Each module imports its framework, and none is imported here: name the one you use, as in
`from segcal.integrations.torchmetrics import ECE`.
"""
