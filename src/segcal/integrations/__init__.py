"""segcal inside other frameworks: `monai`, `torchmetrics` and `nnunet`.

Each module imports its framework; this package imports none of them. Import the module you need:
`from segcal.integrations.torchmetrics import ECE`.
"""
