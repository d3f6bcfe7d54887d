"""A short training: a subclass of segcal's trainer, as nnU-Net is customized.

The name of the class becomes the name of the results folder.
"""

import torch
from nnunetv2.training.nnUNetTrainer.variants.optimizer.nnUNetTrainerAdam import nnUNetTrainerAdam

from segcal.integrations.nnunet.trainers import nnUNetTrainerNACL


class nnUNetTrainerNACLShort(nnUNetTrainerNACL, nnUNetTrainerAdam):
    """NACL + Dice for a few minutes on a CPU: enough to show every step, not for a good network.

    Adam, one of nnU-Net's variants, because SGD needs more steps than these.
    """

    loss_options = {"penalty_weight": 0.1, "patch_size": 3}  # noqa: RUF012

    def __init__(
        self,
        plans: dict,
        configuration: str,
        fold: int,
        dataset_json: dict,
        device: torch.device = torch.device("cuda"),  # noqa: B008
    ) -> None:
        super().__init__(plans, configuration, fold, dataset_json, device)
        self.initial_lr = 3e-3
        self.num_epochs = 4
        self.num_iterations_per_epoch = 40
        self.num_val_iterations_per_epoch = 2
