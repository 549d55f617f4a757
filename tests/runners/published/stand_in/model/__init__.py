"""A stand-in for the published implementation: its interface, none of its code, no caches, no tree attention."""

from ddbench.drafters import load_dflash


class DFlashDraftModel:
    """The drafter of ddbench, asked afresh for every block."""

    def __init__(self, drafter):
        self.drafter = drafter
        self.block_size = drafter.config.block_size
        self.mask_token_id = drafter.config.mask_token_id
        self.target_layer_ids = list(drafter.config.target_layer_ids)

    @classmethod
    def from_pretrained(cls, folder, attn_implementation, dtype):
        assert attn_implementation in ("sdpa", "flash_attention_2")
        return cls(load_dflash(folder, dtype=dtype))

    def to(self, device):
        self.drafter.to(device)
        return self

    def eval(self):
        return self
