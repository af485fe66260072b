"""Failures of the process and of the Python installation around it."""

from studio.host.failures.failure import Failure, Remedy, said
from studio.host.failures.remedies import INSTALL, PYTORCH_KERNELS, REBUILD, RESTART, RESUME

FAILURES = (
    Failure(
        "visual_runtime",
        said(r"WinError (?:126|127|1114)\b.{0,200}(?:shm|c10|torch_\w+|fbgemm)\.dll"),
        (Remedy("visual_runtime"), REBUILD),
    ),
    Failure("processor_old", said(r"\bSIGILL\b", r"Illegal instruction", r"0xC000001D"), (REBUILD,)),
    Failure(
        "native_crash",
        said(
            r"\bSIGSEGV\b",
            r"Segmentation fault",
            r"0xC0000005",
            r"access violation",
            r"\bSIGABRT\b",
            r"Fatal Python error",
        ),
        (PYTORCH_KERNELS, RESUME, Remedy("doctor")),
    ),
    Failure(
        "port_taken",
        said(r"Cannot find empty port", r"Address already in use", r"WinError 10048\b"),
        (Remedy("other_port"),),
    ),
    Failure("two_openmp", said(r"OMP: Error #15"), (REBUILD,)),
    Failure("numpy_abi", said(r"compiled using NumPy 1"), (REBUILD,)),
    Failure("torchvision", said(r"operator torchvision::nms does not exist"), (REBUILD,)),
    Failure(
        "console_encoding", said(r"\bUnicodeEncodeError\b", r"codec can't encode"), (Remedy("use_launcher"),)
    ),
    Failure("multi_gpu_windows", said(r"doesn't have NCCL built in"), (Remedy("one_gpu"),)),
    Failure("forked", said(r"bootstrapping phase", r"just got forked"), (Remedy("use_launcher"),)),
    Failure("package_missing", said(r"No module named '?(?P<module>[\w.]+)"), (INSTALL, REBUILD)),
    Failure("package_mismatch", said(r"\bImportError\b: cannot import name", r"ImpImporter"), (REBUILD,)),
    # A DeepSpeed self-test prints it on every Windows machine; never the cause, so it is looked for last.
    Failure("harmless_deepspeed", said(r"LNK1181.*(?:aio|cufile)\.lib"), (RESTART,)),
)
