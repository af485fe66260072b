"""Which package a name belongs to, how pip calls it, and what replaced names that newer versions dropped."""

from __future__ import annotations

import re

OWNERS = (
    # Its classes are named after those of other packages.
    ("unsloth", r"Unsloth\w*|Fast(?:Language|Vision|Text|)Model|is_bfloat16_supported"),
    (
        "trl",
        r"(?:SFT|DPO|GRPO|PPO|KTO|ORPO|CPO|BCO|XPO|RLOO|GKD|Reward|PRM|OnlineDPO|NashMD)(?:Trainer|Config|v2Trainer)"
        r"|DataCollatorForCompletionOnlyLM|ModelConfig|ScriptArguments|AutoModelForCausalLMWithValueHead",
    ),
    (
        "peft",
        r"\w*Lora\w*|Peft(?!AdapterMixin)\w*|IA3\w*|AdaLora\w*|PromptTuning\w*|get_peft_model\w*|prepare_model_for_\w+_training",
    ),
    (
        "accelerate",
        r"Accelerator\w*|DataLoaderConfiguration|FullyShardedDataParallelPlugin|dispatch_model|init_empty_weights",
    ),
    ("datasets", r"load_dataset|Dataset(?:Dict)?|IterableDataset|load_from_disk"),
    ("huggingface_hub", r"hf_hub_download|snapshot_download|HfApi|HfFolder|InferenceClient|cached_download"),
    ("bitsandbytes", r"(?:Linear|Params|Int)(?:4bit|8bit\w*|8Params)|\w*AdamW?8bit"),
    ("flash_attn", r"Flash(?:Self|Cross)?Attention|flash_attn_\w+"),
    ("autoawq", r"Awq\w+|WQLinear\w*|AutoAWQ\w*"),
    ("gptqmodel", r"GPTQ\w+|AutoGPTQ\w*"),
    ("diffusers", r"UNet\w+|Autoencoder\w+|\w*Diffusion\w*Pipeline|DiffusionPipeline"),
    ("vllm", r"LLMEngine|SamplingParams|EngineArgs|AsyncLLM\w*"),
    ("deepspeed", r"DeepSpeed\w+|ZeroParam\w*"),
    ("liger_kernel", r"Liger\w+"),
    ("lightning", r"Lightning\w+"),
    ("sentence_transformers", r"SentenceTransformer\w*|CrossEncoder\w*|SparseEncoder\w*"),
    (
        "gguf",
        r"MODEL_ARCH\w*|MODEL_TENSOR|GGUF(?:Writer|Reader|Value\w+|Endian)|GGMLQuantizationType|"
        r"LlamaFileType|SpecialVocab",
    ),
    ("starlette", r"_?\w*TemplateResponse|Jinja2Templates|\w*StaticFiles"),
    ("gradio", r"Blocks|Chatbot|ChatInterface|Textbox|Dropdown|Interface|Dataframe"),
    (
        "transformers",
        r"seed_worker|PeftAdapterMixin|GenerationMixin|(?:Seq2Seq)?Trainer|Trainer(?:State|Control|Callback)|CallbackHandler|(?:Seq2Seq)?TrainingArguments|\w+For"
        r"(?:CausalLM|ConditionalGeneration|SequenceClassification"
        r"|QuestionAnswering|MaskedLM|TokenClassification)|\w*Pre[tT]rainedModel|\w*PretrainedConfig|"
        r"\w+Tokenizer(?:Fast|Base)?"
        r"|\w*Processor|DataCollator\w*|BitsAndBytesConfig|GenerationConfig|\w*Cache|Auto\w+|pipeline|Hf\w*Parser"
        r"|\w+(?:Attention\d?|DecoderLayer|RotaryEmbedding|MLP|RMSNorm)",
    ),
    # What is named after it (BertTokenizer) belongs to transformers.
    ("tokenizers", r"Tokenizer"),
)
LIBRARIES = frozenset(
    "torch torchvision torchaudio transformers trl peft datasets accelerate bitsandbytes triton unsloth unsloth_zoo "
    "tokenizers safetensors huggingface_hub gradio gradio_client pydantic starlette fastapi numpy pandas pyarrow scipy "
    "sklearn deepspeed vllm xformers flash_attn optimum auto_gptq gptqmodel awq autoawq evaluate diffusers torchao "
    "llamafactory axolotl sentence_transformers lightning pytorch_lightning wandb tensorboard sentencepiece tiktoken "
    "google fsspec httpx requests urllib3 setuptools packaging PIL cv2 matplotlib jinja2 ray llama_cpp gguf mlx "
    "modelscope swift llmtuner timm einops kernels liger_kernel".split()
)
KNOWN = frozenset(
    "absl aiofiles aiohttp anyio apex av bert_score blobfile boto3 causal_conv1d click cloudpickle "
    "cohere colorama coloredlogs cupy cut_cross_entropy cython decord dill docker einops_exts emoji "
    "fairscale fairseq faiss fasttext filelock fire flask flax ftfy gdown gputil grpc h5py hf_transfer "
    "hf_xet hjson hydra ipykernel ipywidgets jax jaxlib jieba joblib jsonlines jsonschema keras "
    "langchain langchain_community librosa loguru lxml mamba_ssm markdown mediapipe mistral_common "
    "mlflow mlx_lm mmcv mpmath msgpack msvcrt multiprocess mysql networkx ninja nltk numba nvidia_smi "
    "omegaconf onnx onnxruntime openai opencc openpyxl openrlhf orjson outlines pandas peft pip "
    "playwright polars prettytable protobuf psutil psycopg2 pybind11 pycocotools pydub pymongo pynvml "
    "pypdf pysqlite3 pytest qwen_vl_utils ragas redis regex rich rouge rouge_score ruamel sacrebleu "
    "seaborn selenium sentry_sdk shapely simplejson six soundfile spacy sqlalchemy streamlit swanlab "
    "sympy tabulate tensorflow tensorrt termcolor textblob tiktoken toml tomli torch_xla torchdata "
    "torchmetrics tornado tqdm trafilatura transformers_stream_generator trlx turtle typer tyro ujson "
    "uvicorn uvloop verl websockets werkzeug wheel xlrd xlsxwriter xmltodict xxhash yt_dlp zmq zstandard".split()
)
"""Packages of the index that no other list here names: a module of this name is none of a program's own files."""
NAMESPACES = frozenset("google ruamel nvidia azure backports zope sphinxcontrib opentelemetry".split())
"""Names that several packages share: one part can be missing where another is installed."""
PIP_NAMES = {
    "swift": "ms-swift",
    "sentence_transformers": "sentence-transformers",
    "ruamel": "ruamel.yaml",
    "tensorrt": "tensorrt",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "cv2": "opencv-python",
    "yaml": "pyyaml",
    "bs4": "beautifulsoup4",
    "dotenv": "python-dotenv",
    "google.protobuf": "protobuf",
    "google": "protobuf",
    "llama_cpp": "llama-cpp-python",
    "Crypto": "pycryptodome",
    "socksio": "httpx[socks]",
    "OpenSSL": "pyopenssl",
    "awq": "autoawq",
    "flash_attn": "flash-attn",
    "rouge_chinese": "rouge-chinese",
    "fitz": "pymupdf",
    "docx": "python-docx",
    "git": "gitpython",
    "mpi4py": "mpi4py",
}
REPLACED = {
    "tokenizer": "processing_class=...",
    "evaluation_strategy": "eval_strategy=...",
    "max_seq_length": "max_length=... (in SFTConfig)",
    "dataset_text_field": "SFTConfig(dataset_text_field=...)",
    "packing": "SFTConfig(packing=...)",
    "use_auth_token": "token=...",
    "load_in_4bit": "quantization_config=BitsAndBytesConfig(load_in_4bit=True)",
    "load_in_8bit": "quantization_config=BitsAndBytesConfig(load_in_8bit=True)",
    "no_cuda": "use_cpu=...",
    "use_mps_device": "use_cpu=False",
    "per_gpu_train_batch_size": "per_device_train_batch_size=...",
    "dispatch_batches": "dataloader_config=DataLoaderConfiguration(dispatch_batches=...)",
    "even_batches": "dataloader_config=DataLoaderConfiguration(even_batches=...)",
    "use_flash_attention_2": 'attn_implementation="flash_attention_2"',
    "torch_dtype": "dtype=...",
    "num_items_in_batch": "**kwargs",
    "max_prompt_length": "max_length=... (in the Config)",
    "seen_tokens": "get_seq_length()",
    "get_max_length": "get_max_cache_shape()",
    "get_usable_length": "get_seq_length()",
    "prepare_model_for_int8_training": "prepare_model_for_kbit_training",
    "DataCollatorForCompletionOnlyLM": "SFTConfig(completion_only_loss=True)",
    "AdamW": "torch.optim.AdamW",
    "HfFolder": "get_token",
    "cached_download": "hf_hub_download",
    "load_metric": "evaluate.load",
    "model_init_kwargs": "SFTConfig(model_init_kwargs=...)",
    "dataset_kwargs": "SFTConfig(dataset_kwargs=...)",
    "dataset_num_proc": "SFTConfig(dataset_num_proc=...)",
    "concurrency_count": "default_concurrency_limit=...",
    "show_api": 'api_visibility="private"',
    "object": "object",
    "int": "int",
    "float": "float",
    "bool": "bool",
}
"""Old names of well-known packages, and what took their place."""
METHODS = {
    name: package
    for package, names in (
        (
            "peft",
            "merge_and_unload merge_adapter unmerge_adapter _get_submodules get_nb_trainable_parameters "
            "print_trainable_parameters disable_adapter_layers enable_adapter_layers active_adapters",
        ),
        ("transformers", "accelerator is_deepspeed_enabled is_fsdp_enabled _signature_columns"),
        ("unsloth", "save_pretrained_merged save_pretrained_gguf push_to_hub_merged for_inference"),
        (
            "diffusers",
            "set_lora_layer set_attn_processor enable_xformers_memory_efficient_attention load_lora_weights",
        ),
    )
    for name in names.split()
}
"""Methods that one package gives to the models of another one."""
ALIASES = {"bnb": "bitsandbytes", "xops": "xformers", "apex_C": "apex", "cce": "cut_cross_entropy"}
"""What packages call another one that they load only where it works."""
OWN_MODULES = frozenset(
    "src utils util common config configs lib modules tools helpers models scripts core data".split()
)
"""Names that programs give to their own files; no package of that name is meant."""


def owner_of(name: str) -> str:
    """Return the package that the class or function `name` belongs to; "" where none is known to."""
    # A program's own class is mostly named after the one that it is made from.
    return next(
        (package for package, pattern in OWNERS if re.fullmatch(rf"[A-Z]?[a-z]*(?:{pattern})", name)), ""
    )


def named_package(name: str) -> str:
    """Return the package that `name` is itself, or stands for in other packages; "" for none."""
    return ALIASES.get(name) or (name if name in LIBRARIES or name in KNOWN else "")


def pip_name(module: str) -> str:
    """Return what pip calls the package of `module`."""
    root = module.partition(".")[0]
    return PIP_NAMES.get(module) or PIP_NAMES.get(root) or root
