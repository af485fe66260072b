"""Names, homes and secrets go; what a supporter needs to see stays."""

import json

import pytest

from studio.machine.redact import redact


@pytest.fixture(autouse=True)
def nobody(monkeypatch):
    for name in ("USERNAME", "USER", "LOGNAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "text, redacted",
    [
        (r"C:\Users\张三\AppData\Local\Temp\tmp1.c", r"C:\Users\<user>\AppData\Local\Temp\tmp1.c"),
        (r"C:\Users\Jane Doe\.triton\cache", r"C:\Users\<user>\.triton\cache"),
        (r"cannot open C:\Users\jane and D:\x", r"cannot open C:\Users\<user> and D:\x"),
        ("c:/users/JANEDO~1/AppData", "c:/users/<user>/AppData"),
        ("C:\\\\Users\\\\jane\\\\x", "C:\\\\Users\\\\<user>\\\\x"),
        ("/" + "home/jane/.cache/huggingface", "/" + "home/<user>/.cache/huggingface"),
        ("/mnt/c/Users/Jane Doe/models", "/mnt/c/Users/<user>/models"),
        (
            r"\\wsl.localhost\Ubuntu" + r"\home\jane\studio",
            r"\\wsl.localhost\Ubuntu" + r"\home\<user>\studio",
        ),
        ("/" + "Users/jane/x: denied", "/" + "Users/<user>/x: denied"),
        ("http://jane:s3cret@proxy.corp:8080", "http://<secret>@proxy.corp:8080"),
        ("https://tok123@git.corp/x", "https://<secret>@git.corp/x"),
        ("http://jane:p@ss@proxy.corp:8080", "http://<secret>@proxy.corp:8080"),
        ("http://jane:p/ss@proxy.corp:8080", "http://<secret>@proxy.corp:8080"),
        ("proxy jane:s3cret@10.0.0.1:8080", "proxy <secret>@10.0.0.1:8080"),
        ("https://pypi.corp/simple?v=1&token=s3cret", "https://pypi.corp/simple?v=1&token=<secret>"),
        ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer <secret>"),
        ("HF_TOKEN=hf_abcdefghijkl rest", "HF_TOKEN=<secret> rest"),
        ("token hf_AbCdEfGhIjKl was refused", "token <secret> was refused"),
        ("key sk-proj-abcdefgh12345678", "key <secret>"),
        # Put together here, so that nobody's scanner takes them for real ones.
        ("x " + "AIza" + "SyA1b2C3d4" * 3 + "z", "x <secret>"),
        ("judge: " + "gsk_" + "a1B2c3D4e5" * 3 + " refused", "judge: <secret> refused"),
        ("nvapi" + "-" + "a1B2c3D4e5" * 3, "<secret>"),
        ("upload with " + "xoxe" + "-1-abcdefgh1234", "upload with <secret>"),
        ('{"api_key": "abc"}', '{"api_key": "<secret>"}'),
        ("written by jane.doe@example.com", "written by <email>"),
    ],
)
def test_what_goes(text, redacted):
    assert redact(text) == redacted
    assert redact(redacted) == redacted, "a second time changes nothing"


@pytest.mark.parametrize(
    "text",
    [
        "ptxas fatal   : Unsupported .version 6.5; current version is '6.4'",
        "TRITON_PTXAS_PATH=/usr/local/cuda-10.2/bin/ptxas",
        "token id 32000 is beyond the vocabulary; pad_token=0, max_tokens: 512",
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        r"C:\Program Files\NVIDIA GPU Computing Toolkit\CUDA\v10.2\bin\ptxas.exe",
        "[WinError 1114] A dynamic link library (DLL) initialization routine failed",
        "https://mirror.example:8443/simple/",
        "/usr/lib/wsl/lib/libcuda.so.1",
        "pip download pypi-attestations r8_short xai-sdk",
        "libbitsandbytes_cuda130.so sm_120 gfx1100 581.29",
    ],
)
def test_what_stays(text):
    assert redact(text) == text


def test_a_name_found_in_a_path_goes_everywhere():
    facts = {
        "places": {"home": {"path": r"C:\Users\jdoe", "length": 13, "ansi": True}},
        "environment": {"HTTP_PROXY": "http://jdoe:pw@proxy:3128", "WANDB_API_KEY": "0123456789abcdef"},
        "repairs": ("jdoe", "drop_compiler"),
        "triton_error": "owner JDOE may not read jdoe2.txt",
        "gpus": [{"vram_bytes": 8, "capability": [8, 9]}],
    }
    clean = redact(facts)
    assert "jdoe" not in json.dumps(clean).lower().replace("jdoe2", "")
    assert clean["places"]["home"] == {"path": r"C:\Users\<user>", "length": 13, "ansi": True}
    assert clean["environment"] == {"HTTP_PROXY": "http://<secret>@proxy:3128", "WANDB_API_KEY": "<secret>"}
    assert clean["triton_error"] == "owner <user> may not read jdoe2.txt"
    assert clean["repairs"] == ("<user>", "drop_compiler") and clean["gpus"] == facts["gpus"]


def test_this_processs_user_goes_and_a_common_word_stays(monkeypatch):
    monkeypatch.setenv("USERNAME", "mallory")
    assert redact("D:\\data of mallory") == "D:\\data of <user>"
    monkeypatch.setenv("USERNAME", "user")
    assert redact("ask the user of /" + "home/user/x") == "ask the user of /" + "home/<user>/x"
