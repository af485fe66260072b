"""Failures of a page's own libraries, its address and its link."""

from studio.machine.failures.failure import Doubt, Failure, Remedy, said

FAILURES = (
    Failure(
        # The page and its program speak over one connection that stays open.
        "page_connection",
        said(
            r"WebSocket connection to '[^'\n]*/queue/(?:join|data)[^'\n]*' failed",
            r"^(?:Error: |Something went wrong )?Connection errored out\b",
            r"(?:127\.0\.0\.1|localhost):\d+/startup-events[\s\S]{0,6000}?(?:Read|Connect)Timeout",
        ),
        (Remedy("no_proxy"), Remedy("window_upgrade")),
        code="W7",
    ),
    Failure(
        "window_libraries",
        said(
            r"^KeyError: 'const'",
            r"(?:gradio|starlette|fastapi|gradio_client|"
            r"jinja2)[\\/][\s\S]{0,3000}?(?:argument of type 'bool' is not iterable|unhashable type: 'dict')",
            r"argument of type 'bool' is not iterable",
            r"No API found[\s\S]{0,200}gradio",
            r"\bAPIInfoParseError\b",
            r"(?:gradio|fastapi|starlette)[\\/][\s\S]{0,3000}?(?:PydanticSchemaGenerationError|"
            r"PydanticUserError|pydantic[\w.]*\.\w*Error)",
            r"\b__pydantic_core_schema__\s*$|validation errors? for PredictBody",
            r"PydanticSchemaGenerationError: [^\n]{1,80}<class '(?:starlette|fastapi|gradio)",
            r"cannot import name '(?:HfFolder|RootModel|field_validator|TypeAdapter|"
            r"_TemplateResponse)' from '(?:huggingface_hub|pydantic|starlette)",
            r"TemplateResponse\(\) got|Router\.__init__\(\) got an unexpected keyword argument 'on_startup'",
        ),
        (Remedy("window_upgrade"),),
        code="W1",
    ),
    Failure(
        # The open page belongs to an earlier start, or the next call met another copy of the program.
        "page_stale",
        said(
            r"Event not found in queue|Session (?:id )?not found\b[^\n]{0,60}(?:gradio|queue)|"
            r"Expecting value: line 1 column 1[^\n]{0,80}gradio_api",
        ),
        (Remedy("reload_page"), Remedy("one_replica")),
        code="W13",
    ),
    Failure(
        "share_link",
        said(r"Could not create share link", r"Missing file: \S*frpc", r"frpc_\w+"),
        (Remedy("share_other_way"),),
        code="W2",
    ),
    Failure(
        "master_port",
        said(
            r"server socket has failed to (?:listen|bind)",
            r"EADDRINUSE",
            r"(?:torch|c10d|TCPStore|rendezvous|MASTER_PORT|master_port|deepspeed|"
            r"torchrun)[\s\S]{0,400}?[Aa]ddress already in use",
        ),
        (Remedy("free_master_port"),),
        code="W3",
        unless=said(r"uvicorn|gradio|Cannot find empty port"),
    ),
    Failure(
        "port_of_another",
        said(
            r"(?:uvicorn|ollama|jupyter|tensorboard|vllm|llama-server|listen tcp|nginx|"
            r"docker)[^\n]{0,300}(?:[Aa]ddress already in use|Only one usage of each socket|"
            r"port is already allocated|10048)",
            r"listen tcp [^\n]{0,60}bind:",
            r"TensorBoard could not bind to port",
            r"port is already allocated",
        ),
        (Remedy("find_port_owner"),),
        code="W4",
    ),
    Failure(
        "port_reserved",
        said(
            r"\b[Pp]ort (?:\d{1,3}|10[01]\d|102[0-3]) is (?:already |currently )?in use",
            r"\bbind[^\n]{0,80}(?:[Pp]ermission denied|WinError 10013|Errno 13)",
            r"(?:WinError 10013|forbidden by its access permissions)",
        ),
        (Remedy("higher_port"),),
        code="W6",
        doubt=Doubt("port_taken", "port_holder"),
    ),
    Failure(
        # What a server listens at is no address that a browser can ask for.
        "address_of_all",
        said(
            r"\b0\.0\.0\.0\b[^\n]{0,120}(?:HTTP ERROR|unable to handle|refused to connect)|ERR_ADDRESS_INVALID"
        ),
        (Remedy("open_this_computer"),),
        code="W10",
    ),
    Failure(
        # The server says that it listens for its own computer alone, and another address is asked for.
        "page_local_only",
        said(
            r"(?:127\.0\.0\.1|localhost):\d+[\s\S]{0,600}?\b(?!127\.|0\.0\.0\.0)\d{1,3}(?:\.\d{1,3}){3}[^\n]{0,40}"
            r"(?:refused to connect|\u62d2\u7edd)",
            # Docker takes the connection and finds nobody inside.
            r"(?P<doubtful>\bERR_EMPTY_RESPONSE\b)",
        ),
        (Remedy("listen_to_all"), Remedy("tunnel")),
        code="W11",
        doubt=Doubt("page_refused", "other_computer", asked=True),
    ),
    Failure(
        "page_refused",
        said(
            r"\bERR_CONNECTION_REFUSED\b|(?:localhost|127\.0\.0\.1)[^\n]{0,40}(?:refused to connect|\u62d2\u7edd)"
        ),
        (Remedy("page_runs"), Remedy("other_port")),
        code="W12",
        doubt=Doubt("page_local_only", "which_computer"),
    ),
    Failure(
        "address_absent",
        said(r"\[Errno (?:97|99|49)\]", r"WinError 10049\b", r"[Cc](?:annot|an't) assign requested address"),
        (Remedy("address_of_this"),),
        code="W8",
        strength=0.95,
    ),
    Failure(
        # A page that was open, or settings that were saved, before the list became another one.
        "choice_absent",
        said(
            r"Value: (?P<name>[^\n]{0,80}?) is not in the list of choices",
            r"self\.choices[^\n]*\n(?:[^\n]*\n){0,2}?[^\n]{0,20}ValueError: (?P<name>[^\n]{0,80}?) is not in list",
        ),
        (Remedy("reload_page"), Remedy("choose_anew")),
        code="W9",
        unless=said(r"UserWarning: The value passed into"),
    ),
    Failure(
        "chat_form",
        said(r"Data incompatible with (?:the )?(?P<name>messages|tuples) format"),
        (Remedy("message_form"), Remedy("window_upgrade")),
        code="W5",
    ),
)
