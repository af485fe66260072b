"""GPTQ's, AWQ's and compressed-tensors' folders open to the numbers that their formulas mean."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from studio.models.catalog import DEMO_MODEL, inspect_model
from studio.models.resolve import open_packed
from studio.models.stored_integers import unpack_bits

GROUP = 32
AWQ_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight columns lies at each place of a word, as AWQ's authors write it."""


@pytest.fixture(autouse=True)
def hub(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "hub"))


def pack(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Return (rows, n) int32 of non-negative integers (rows, count), bit behind bit."""
    all_bits = (codes.numpy().astype(np.int64)[..., None] >> np.arange(bits)) & 1
    rows = all_bits.reshape(len(codes), -1).astype(np.uint8)
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 32)))
    return torch.from_numpy(np.packbits(rows, axis=1, bitorder="little").view(np.int32).copy())


class Drawn:
    """Integers, scales and zeros of one weight (outputs, inputs)."""

    def __init__(self, shape: tuple[int, int], bits: int, groups: int, mixed: bool = False) -> None:
        outputs, inputs = shape
        self.bits = bits
        self.codes = torch.randint(0, 2**bits, shape)
        self.scales = (torch.rand(outputs, groups) * 0.02 + 0.001).half()
        self.zeros = torch.randint(0, 2**bits, (outputs, groups))
        self.index = torch.arange(inputs) // (inputs // groups)
        if mixed:
            self.index = self.index[torch.randperm(inputs)]

    def mean(self) -> torch.Tensor:
        """Return what the weight is worth, in bfloat16."""
        shifted = (self.codes - self.zeros[:, self.index]).float()
        return (shifted * self.scales.float()[:, self.index]).bfloat16()


def write(folder: Path, make, settings: dict) -> dict[str, torch.Tensor]:
    """Make the demo model a folder in which `make` (name, shape) stores each projection; returns what each is worth."""
    shutil.copytree(DEMO_MODEL, folder)
    weights, meant = load_file(folder / "model.safetensors"), {}
    for name in [name for name in weights if "_proj.weight" in name]:
        drawn, stored = make(name.removesuffix("weight"), tuple(weights.pop(name).shape))
        meant[name] = drawn.mean()
        weights |= {key: tensor.contiguous() for key, tensor in stored.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = settings
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return meant


def assert_opens(folder: Path, meant: dict[str, torch.Tensor]) -> None:
    """Open `folder` and compare each weight."""
    before, demo = inspect_model(str(folder)), inspect_model("demo")
    assert before.packed and before.trainable.ok and before.quantization == "none"
    assert (before.parameters, before.linears) == (demo.parameters, demo.linears)
    opened = open_packed(before)
    found = load_file(Path(opened.folder) / "model.safetensors")
    assert found.keys() == load_file(DEMO_MODEL / "model.safetensors").keys()
    for name, weight in meant.items():
        assert found[name].dtype == torch.bfloat16 and torch.equal(found[name], weight), name


@pytest.mark.parametrize("bits", range(2, 9))
def test_integers_that_cross_words_are_read(bits):
    codes = torch.randint(0, 2**bits, (3, 70))
    assert torch.equal(unpack_bits(pack(codes, bits), bits, 70), codes.int())


@pytest.mark.parametrize(
    "bits, version, mixed", [(4, "gptq", False), (4, "gptq_v2", True), (3, None, False), (8, "gptq", True)]
)
def test_gptq(tmp_path, bits, version, mixed):
    def make(base, shape):
        drawn = Drawn(shape, bits, shape[1] // GROUP, mixed)
        zeros = drawn.zeros if version == "gptq_v2" else drawn.zeros - 1 & 2**bits - 1
        stored = {
            "qweight": pack(drawn.codes, bits).T, "qzeros": pack(zeros.T, bits), "scales": drawn.scales.T,
        } | ({"g_idx": drawn.index.int()} if mixed else {})  # fmt: skip
        return drawn, {base + key: value for key, value in stored.items()}

    settings = {"quant_method": "gptq", "bits": bits, "group_size": GROUP}
    meant = write(tmp_path / "m-gptq", make, settings | ({"checkpoint_format": version} if version else {}))
    assert_opens(tmp_path / "m-gptq", meant)


def test_awq(tmp_path):
    def make(base, shape):
        drawn = Drawn(shape, 4, shape[1] // GROUP)

        def turn(codes):  # (rows, outputs)
            return codes.view(len(codes), -1, 8)[:, :, list(AWQ_PLACES)].reshape(len(codes), -1)

        stored = {
            "qweight": pack(turn(drawn.codes.T.contiguous()), 4),
            "qzeros": pack(turn(drawn.zeros.T.contiguous()), 4),
            "scales": drawn.scales.T,
        }
        return drawn, {base + key: value for key, value in stored.items()}

    meant = write(tmp_path / "m-awq", make, {"quant_method": "awq", "bits": 4, "version": "gemm"})
    assert_opens(tmp_path / "m-awq", meant)


@pytest.mark.parametrize(
    "bits, groups, zeros, mixed",
    [(4, GROUP, "none", False), (4, GROUP, "packed", True), (8, 0, "plain", False), (4, 0, "none", False)],
)
def test_compressed_tensors(tmp_path, bits, groups, zeros, mixed):
    middle = 2 ** (bits - 1)

    def make(base, shape):
        drawn = Drawn(shape, bits, shape[1] // groups if groups else 1, mixed)
        if zeros == "none":
            drawn.zeros.fill_(middle)
        base += "weight"
        stored = {
            "_packed": pack(drawn.codes, bits), "_scale": drawn.scales, "_shape": torch.tensor(shape),
        }  # fmt: skip
        if zeros == "packed":
            stored["_zero_point"] = pack(drawn.zeros.T, bits).T
        elif zeros == "plain":
            stored["_zero_point"] = (drawn.zeros - middle).to(torch.int8)
        if mixed:
            stored["_g_idx"] = drawn.index.int()
        return drawn, {base + key: value for key, value in stored.items()}

    settings = {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": bits, "group_size": groups or -1}}},
    }  # fmt: skip
    assert_opens(tmp_path / "m-w4a16", write(tmp_path / "m-w4a16", make, settings))


def test_integers_of_eight_bits_with_a_scale_a_row(tmp_path):
    def make(base, shape):
        drawn = Drawn(shape, 8, 1)
        drawn.zeros.fill_(128)
        codes = (drawn.codes - 128).to(torch.int8)
        return drawn, {
            base + "weight": codes, base + "weight_scale": drawn.scales, base + "input_scale": torch.ones(1)
        }  # fmt: skip

    settings = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {}}
    assert_opens(tmp_path / "m-w8a8", write(tmp_path / "m-w8a8", make, settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
        {"quant_method": "awq", "bits": 4, "version": "gemv"},
        {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"a": {"weights": {"num_bits": 4}}, "b": {"weights": {"num_bits": 8}}},
        },
    ],
    ids=["marlin", "gemv", "nvfp4", "two widths"],
)
def test_other_forms_are_refused_by_their_name(tmp_path, settings):
    def make(base, shape):
        drawn = Drawn(shape, 4, 1)
        return drawn, {base + "weight_packed": pack(drawn.codes, 4), base + "weight_scale": drawn.scales}

    write(tmp_path / "m", make, settings)
    facts = inspect_model(str(tmp_path / "m"))
    assert not facts.trainable.ok and facts.quantization.startswith(settings["quant_method"] + " (")
