"""Failures of names, access rights, mirrors and proxies between a program and the model hub."""

from __future__ import annotations

from studio.machine.failures.causes.hub_names import FAILURES as NAMES
from studio.machine.failures.failure import Doubt, Failure, Remedy, said
from studio.machine.failures.remedies import FETCH_AGAIN, LOCAL_MODEL

ACCOUNT = r"(?:api[_ ]?key|log(?:ged)? ?in\b|log ?in|authent|unauthori|\b40[13]\b|anonymous)"
"""What a service says that wants to know who asks."""

FAILURES = (
    Failure(
        "snapshot_incomplete",
        said(
            r"(?:Unable to open file|No such file or directory|[Cc](?:an ?not|ould not) open(?: file)?)\b[^\n]{0,160}"
            r"[\\/]snapshots[\\/]+[0-9a-f]{40}[^\n]*"
        ),
        (Remedy("fetch_again"), Remedy("which_files")),
        code="N69",
    ),
    Failure(
        "name_none",
        said(r"huggingface\.co/(?:api/)?(?:models/|datasets/)?None(?:/|\b)", r"under the namespace \"None\""),
        (Remedy("give_name"),),
        code="N41",
    ),
    Failure(
        "file_named",
        said(
            r"Repo id must [^\n]{0,200}'(?P<path>[^'\n]{1,300}\.(?:json|bin|safetensors|pt|pth|gguf|ckpt|model))'",
            r"Couldn't reach server at '(?P<path>(?!https?:)[^'\n]+)' to download configuration",
        ),
        (Remedy("name_its_folder"),),
        code="N42",
    ),
    Failure(
        # Until 2.x a dataset of the hub had to bring a program that reads it.
        "dataset_program",
        said(r"Couldn't find file at https?://\S+/datasets/\S+/resolve/[^/\s]+/(?P<name>[\w.-]+\.py)"),
        (Remedy("upgrade_datasets"), Remedy("other_source")),
        code="D201",
    ),
    Failure(
        "hf_transfer",
        said(
            r"HF_HUB_ENABLE_HF_TRANSFER=1[^\n]*not available",
            r"No module named '?hf_transfer",
        ),
        (Remedy("no_hf_transfer"),),
        code="N20",
    ),
    Failure(
        "hf_transfer_cut",
        said(r"error (?:occurred )?(?:while|using)[^\n]{0,60}`?hf_transfer`?"),
        (Remedy("plain_download"), FETCH_AGAIN),
        code="N37",
    ),
    Failure(
        "model_path",
        said(
            r"HFValidationError",
            r"Repo id must (?:be in the form|use alphanumeric)",
            r"Incorrect path_or_model_id",
            r"(?P<name>(?:\.{0,2}/|[A-Za-z]:\\|"
            r"~)[^\s'\"]*) is not a local folder and is not a valid model identifier",
            r"is not the path to a directory containing a (?:file named )?\S+",
        ),
        (Remedy("check_folder"),),
        code="N21",
        unless=said(
            r"Repo id must [^\n]{0,200}\.(?:json|bin|safetensors|pt|pth|gguf|ckpt|model)'",
            *(pattern for failure in NAMES for pattern in failure.signature.patterns),
            # A name of the hub, not a folder: the network is at fault.
            r"couldn't connect to[\s\S]{0,400}?looks like (?!\.{0,2}/)[\w-]+/[\w.-]+ is not the path",
        ),
    ),
    Failure(
        "adapter_missing",
        said(
            r"Can't find 'adapter_config\.json' at|No adapter found for [/\\\w]",
            r"Can't find weights for \S+ in|adapter_model\.(?:safetensors|bin)[^\n]{0,60}(?:not found|No such)",
        ),
        (Remedy("adapter_folder"),),
        code="N22",
    ),
    Failure(
        "files_missing",
        said(
            r"Can't find (?:a )?config\.json",
            r"does not appear to have (?:a file named|files named)",
            r"Error no file named \S+",
            r"is missing the files?: ",
            r"config\.json`? does not exist",
            r"Can't load (?:the )?(?:model|config|configuration|image processor|feature extractor|"
            r"processor) (?:for|of) '",
            r"\bEntryNotFoundError",
            r"Entry Not Found for url",
            r"no file named (?:pytorch_model\.bin|model\.safetensors)",
        ),
        (Remedy("which_files"), FETCH_AGAIN),
        code="N23",
        unless=said(r"GatedRepoError"),
    ),
    Failure(
        # Storage behind the hub, which is asked with an address that counts for some minutes.
        "link_expired",
        said(
            r"40[03] (?:Client Error: )?(?:Forbidden|Bad Request) for url: https://[\w.-]*"
            r"(?:amazonaws|cloudfront|cdn-lfs[\w-]*|xethub)\.[^\s]*",
            r"LFS: Authorization error: https?://[\w.-]*(?:amazonaws|cloudfront|xethub)\.",
        ),
        (Remedy("link_again"), Remedy("clock_right"), Remedy("upgrade_hub")),
        code="N44",
    ),
    Failure(
        "rate_limited",
        said(r"429 (?:Client Error|Too Many Requests)", r"Too Many Requests", r"rate limit"),
        (Remedy("wait_log_in"),),
        code="N24",
    ),
    Failure(
        "token_rights",
        said(
            r"403 (?:Client Error|Forbidden)[\s\S]{0,300}?(?:create|write|preupload|commit|upload|push)",
            r"don't have the rights to|don't have (?:write )?(?:access|permission)",
            r"403 Forbidden: (?:Authorization error|This authentication token does not have)",
            r"fine-grained token",
            r"DENIED update refs/",
            r"403 Forbidden\), domain: \S+/xet-write-token",
            r"403 Client Error: Forbidden for url: \S+\.git/info/lfs",
        ),
        (Remedy("write_token"),),
        code="N25",
        unless=said(r"GatedRepoError|gated repo"),
    ),
    Failure(
        "upload_refused",
        said(
            r"400 Client Error: Bad Request for url: \S+/(?:commit|preupload|upload)\b",
            r"Bad request for commit endpoint|Invalid metadata in README",
        ),
        (Remedy("card_fields"), Remedy("upgrade_hub")),
        code="N35",
    ),
    Failure(
        "hub_down",
        said(
            r"5(?:0[0234]|2[0-6]) Server Error|408 Client Error",
            r"\b50[234] (?:Bad Gateway|Service Unavailable|Gateway Time-?out)",
            r"Internal Error - We're working hard",
        ),
        (Remedy("wait_hub"), FETCH_AGAIN),
        code="N26",
        unless=said(r"localhost|127\.0\.0\.1"),
    ),
    Failure(
        "proxy_socks",
        said(
            r"Missing dependencies for SOCKS support",
            r"Using SOCKS proxy, but the 'socksio' package",
            r"Unknown scheme for proxy URL",
            r"Unable to determine SOCKS version",
        ),
        (Remedy("socks_package"), Remedy("no_proxy_at_all")),
        code="N27",
    ),
    Failure(
        "proxy",
        said(
            r"InvalidURL: Invalid port",
            r"\bProxyError\b",
            r"[Uu]nable to connect to proxy|Cannot connect to proxy",
            r"407 (?:Client Error: )?Proxy Authentication Required|Tunnel connection failed",
            r"check_hostname requires server_hostname",
            # Where urllib3 speaks to the proxy itself.
            r"in _connect_tls_proxy\b[\s\S]{0,3000}?^(?:\w+\.)*(?:OSError|SSLError|ConnectionError|SSLEOFError): ",
            r"ProxySchemeUnknown|InvalidProxyURL",
        ),
        (Remedy("right_proxy"), Remedy("no_proxy_at_all")),
        code="N28",
    ),
    Failure(
        "server_ended",
        said(
            r"RemoteDisconnected\('Remote end closed connection|RemoteProtocolError: Server disconnected",
            r"(?:localhost|127\.0\.0\.1|0\.0\.0\.0)[^\n]{0,200}Connection reset by peer",
        ),
        (Remedy("server_log"), Remedy("ask_again")),
        code="N52",
        strength=0.8,
        doubt=Doubt("connection_closed", "server_alive"),
    ),
    Failure(
        "connection_closed",
        said(
            r"EOF occurred in violation of protocol",
            r"SSLEOFError|SSLZeroReturnError|TLS/SSL connection has been closed",
            r"WRONG_VERSION_NUMBER",
            r"UNEXPECTED_EOF_WHILE_READING",
        ),
        (Remedy("right_proxy"), Remedy("mirror")),
        code="N29",
        strength=0.95,
        doubt=Doubt("proxy", "curl_hub"),
    ),
    Failure(
        "mirror_old",
        said(
            r"Distant resource does not seem to be on huggingface\.co",
            r"missing commit header|X-Repo-Commit",
            r"404 Client Error: [^\n]{0,40} for url: https?://[\w.-]*(?:mirror|hf-)[\w.-]*/",
            r"cannot find the requested files in the (?:disk|local) cache.{0,300}hf-mirror",
        ),
        (Remedy("other_mirror"),),
        code="N30",
    ),
    Failure(
        "wandb_unreachable",
        said(
            r"wandb backend process has shutdown|SockClientClosedError|MailboxClosedError",
            r"[\\/]wandb[\\/]sdk[\\/][\s\S]{0,1500}?^(?:BrokenPipeError|ConnectionResetError|ConnectionRefusedError)",
            r"Error communicating with wandb process|wandb: (?:W&B API |)?[Nn]etwork error",
            r"CommError[^\n]*(?:timed? ?out|[Cc]onnection|[Uu]nable to|retry)",
            r"wandb[\\/][\w\\/]+\.py[^\n]*\n(?:[^\n]*\n){0,3}?ConnectionRefusedError",
        ),
        (Remedy("wandb_off"),),
        code="N36",
    ),
    Failure(
        "wandb_project",
        said(
            r"wandb[^\n]{0,60}(?:do(?:es)? not have permission to access the requested|permission denied|403)",
            r"CommError[^\n]*(?:permission|entity|project|403|404)",
        ),
        (Remedy("wandb_entity"), Remedy("wandb_off")),
        code="N38",
    ),
    Failure(
        "hub_account",
        said(
            rf"wandb[^\n]{{0,40}}(?:UsageError: [^\n]*{ACCOUNT}|api_key not configured)",
            r"api_key not configured \(no-tty\)",
            rf"wandb: ERROR [^\n]*{ACCOUNT}",
            r"CommError[^\n]*401",
        ),
        (Remedy("wandb_off"),),
        code="N31",
        unless=said(r"do(?:es)? not have permission to access the requested"),
    ),
    Failure(
        "cache_missing",
        said(
            r"Cannot find an appropriate cached snapshot folder",
            r"Couldn't find cache for \S+ for config",
            r"local_files_only[^\n]{0,80}(?:True|set)",
            r"outgoing traffic (?:has been|is) disabled",
        ),
        (Remedy("go_online"), LOCAL_MODEL),
        code="N34",
        unless=said(
            r"offline mode is enabled|OfflineModeIsEnabled|has been disabled|Cannot pass 'force_download"
        ),
    ),
)
