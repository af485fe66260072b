"""Failures of Docker and of NVIDIA's part of it, which brings the graphics card into a container."""

from __future__ import annotations

from studio.machine.failures.failure import Doubt, Failure, Remedy, said

FAILURES = (
    Failure(
        "container_devices",
        said(r"unresolvable CDI devices|failed to inject CDI devices"),
        (Remedy("write_devices"), Remedy("newer_toolkit")),
        code="L30",
    ),
    Failure(
        "container_root",
        said(r"nvidia-container-cli: [^\n]{0,60}change root failed"),
        (Remedy("docker_of_host"), Remedy("newer_toolkit")),
        code="L31",
    ),
    Failure(
        "container_device",
        said(r"nvidia-container-cli: device error: (?P<name>[\w:-]+): unknown device"),
        (Remedy("devices_there"),),
        code="L35",
    ),
    Failure(
        "container_wants",
        said(r"nvidia-container-cli: requirement error: (?!unsatisfied condition)[^\n]*"),
        (Remedy("no_requirement"), Remedy("newer_toolkit")),
        code="L32",
    ),
    Failure(
        "docker_daemon",
        said(
            r"permission denied while trying to connect to the [Dd]ocker",
            r"Cannot connect to the Docker daemon|docker daemon is not running|error during connect: [^\n]*docker",
        ),
        (Remedy("docker_group"), Remedy("docker_start")),
        code="L14",
    ),
    Failure(
        "container_toolkit",
        said(
            r"could not select device driver .{0,20}with capabilities",
            r"nvidia-container-runtime\"?: (?:executable file not found|no such file)",
            r"[Uu]nknown (?:or invalid )?runtime (?:specified|name:?) nvidia",
            r"invoking the NVIDIA Container Runtime Hook directly[^\n]{0,60}is not supported",
        ),
        (Remedy("install_toolkit"),),
        code="L13",
    ),
    Failure(
        # Older ones know only the first kind of Linux's control groups.
        "container_groups",
        said(
            r"nvidia-container-cli: (?:container|mount) error: [^\n]*cgroup[^\n]*",
            r"failed to get device cgroup mount path",
            r"nvidia-container-cli: mount error: failed to add device rules[^\n]{0,120}",
        ),
        (Remedy("newer_toolkit"), Remedy("no_groups")),
        code="L19",
    ),
    Failure(
        "container_ldconfig",
        said(r"nvidia-container-cli: ldcache error: [^\n]{1,120}"),
        (Remedy("ldconfig_of_host"), Remedy("newer_toolkit")),
        code="L26",
    ),
    Failure(
        "selinux",
        said(
            r"\bSELinux is preventing\b",
            r"Failed to initialize NVML: Insufficient Permissions",
            r"avc: +denied",
        ),
        (Remedy("selinux_label"),),
        code="L34",
    ),
    Failure(
        "container_lost_card",
        said(r"Failed to initialize NVML: Unknown Error"),
        (Remedy("container_again"), Remedy("no_groups")),
        code="L20",
        doubt=Doubt("driver_silent", "smi_outside"),
    ),
    Failure(
        # NVIDIA's part of Docker is there, and finds no driver that answers.
        "container_driver",
        said(
            r"nvidia-container-cli: (?:initialization|device|detection|mount) error"
            r"(?![^\n]*cgroup|: change root failed|[^\n]*(?:: unknown device|device filter program|device rules)|"
            r": WSL environment detected but no adapters|: file creation failed:[^\n]{0,200}file exists)[^\n]*",
        ),
        (Remedy("driver_of_host"), Remedy("install_toolkit")),
        code="L17",
    ),
    Failure(
        # The toolkit puts the driver's files of the host there, where the image has its own already.
        "image_driver",
        said(r"nvidia-container-cli: mount error: file creation failed:[^\n]{0,200}file exists"),
        (Remedy("image_without_driver"),),
        code="L21",
    ),
)
