"""Files as people write them for other tools, each with what it comes to here."""

from __future__ import annotations

LLAMA_FACTORY = """\
### model
model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct
trust_remote_code: true

### method
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 16
lora_target: q_proj,v_proj
use_galore: false
loraplus_lr_ratio: 16.0

### dataset
dataset: orders, others
dataset_dir: data
template: qwen
cutoff_len: 1536
max_samples: 900
packing: true

### train
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
learning_rate: 3.0e-5
num_train_epochs: 2.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
val_size: 0.1
lerning_rate: 1
"""
AXOLOTL = """\
base_model: NousResearch/Llama-3.2-1B
load_in_4bit: true
adapter: qlora
lora_r: 32
lora_alpha: 16
lora_target_linear: true
sequence_len: 2048
sample_packing: true
datasets:
  - path: mine/alpaca
    type: alpaca
    split: train[:500]
  - path: json
    data_files: more.jsonl
    type: chat_template
val_set_size: 0.05
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 1
optimizer: paged_adamw_8bit
learning_rate: 2e-4
lr_scheduler: cosine
noisy_embedding_alpha: 5
wandb_project:
evals_per_epoch: 4
"""
TORCHTUNE = """\
#   tune download meta-llama/Llama-3.2-1B-Instruct --output-dir /tmp/none-of-this --ignore-patterns x
output_dir: /tmp/out
model:
  _component_: torchtune.models.llama3_2.lora_llama3_2_1b
  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 64
  lora_alpha: 128
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: ${checkpointer.checkpoint_dir}/tokenizer.model
  max_seq_len: 512
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: /tmp/none-of-this/
  output_dir: ${output_dir}
dataset:
  _component_: torchtune.datasets.alpaca_cleaned_dataset
  packed: False
batch_size: 4
optimizer:
  _component_: torch.optim.AdamW
  lr: 3e-4
lr_scheduler:
  _component_: torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup
  num_warmup_steps: 100
loss:
  _component_: torchtune.modules.loss.LinearCrossEntropyLoss
epochs: 2
max_steps_per_epoch: 50
gradient_accumulation_steps: 8
clip_grad_norm: null
"""
MS_SWIFT = """\
#!/bin/bash
# 22GB
export MODEL=${1:-Qwen/Qwen2.5-7B-Instruct}
nproc_per_node=2
NPROC_PER_NODE=$nproc_per_node \\
swift rlhf \\
    --rlhf_type dpo \\
    --model $MODEL \\
    --train_type lora \\
    --dataset 'hub/pairs#500' \\
    --beta 0.2 \\
    --rpo_alpha 0.1 \\
    # a comment between two options
    --per_device_train_batch_size 1 \\
    --gradient_accumulation_steps $(expr 16 / $nproc_per_node) \\
    --learning_rate 5e-5 \\
    --target_modules all-linear \\
    --system 'You are
a helpful assistant.' \\
    --deepspeed zero2
"""
TRL_YAML = """\
model_name_or_path: alignment/base
use_peft: true
lora_r: 8
lora_target_modules:
- q_proj
- v_proj
dataset_mixer:
  hub/pairs: 1.0
dataset_splits:
- train_prefs
- test_prefs
beta: 0.05
loss_type: ipo
learning_rate: 5.0e-6
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
max_prompt_length: 512
max_length: 1024
"""
TRL_SCRIPT = """\
import os
import argparse
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl import DPOConfig, DPOTrainer

raise SystemExit("run")

parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int, default=12)
parser.add_argument("--out")
args = parser.parse_args()
BASE = "org"
NAME = os.path.join(BASE, "model")


def load(name, bits=True):
    quant = BitsAndBytesConfig(load_in_4bit=bits, bnb_4bit_quant_type="nf4")
    return AutoModelForCausalLM.from_pretrained(name, quantization_config=quant), AutoTokenizer.from_pretrained(name)


def main():
    model, tokenizer = load(NAME)
    data = load_dataset("json", data_files={"train": "pairs.jsonl"}, split="train")
    data = data.shuffle(seed=1).select(range(2 * 100))
    config = DPOConfig(
        output_dir=args.out,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2 * 2,
        learning_rate=5e-6 if args.rank > 8 else 1e-6,
        loss_type="hinge",
        max_length=args.length if False else 640,
    )
    config.beta = 0.3
    peft = LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules=["q_proj", "v_proj"])
    trainer = DPOTrainer(model, args=config, train_dataset=data, processing_class=tokenizer, peft_config=peft)
    trainer.train()


if __name__ == "__main__":
    main()
"""
UNSLOTH_SCRIPT = """\
from unsloth import FastLanguageModel
from unsloth.chat_templates import get_chat_template, train_on_responses_only
from trl import SFTTrainer, SFTConfig
from datasets import load_dataset

max_seq_length = 2048
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="mine/llama-4bit", max_seq_length=max_seq_length, load_in_4bit=True
)
model = FastLanguageModel.get_peft_model(
    model, r=16, target_modules=["q_proj", "k_proj"], lora_alpha=16, use_rslora=True, random_state=3407
)
tokenizer = get_chat_template(tokenizer, chat_template="llama-3.1")


def format_rows(rows):
    return {"text": [tokenizer.apply_chat_template(one) for one in rows["conversations"]]}


dataset = load_dataset("mine/chats", split="train").map(format_rows, batched=True)
trainer = SFTTrainer(
    model=model,
    train_dataset=dataset,
    args=SFTConfig(
        dataset_text_field="text",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        warmup_steps=5,
        max_steps=60,
        learning_rate=2e-4,
        optim="adamw_8bit",
        weight_decay=0.01,
        lr_scheduler_type="linear",
        neftune_noise_alpha=5,
        report_to="wandb",
    ),
)
trainer = train_on_responses_only(trainer, instruction_part="user", response_part="assistant")
trainer.train()
if False:
    model.push_to_hub("mine/secret")
"""
GRPO_SCRIPT = """\
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer


def count_letters(completions, **kwargs):
    return [float(len(one)) for one in completions]


trainer = GRPOTrainer(
    model="org/model",
    reward_funcs=[count_letters],
    args=GRPOConfig(
        num_generations=4,
        max_completion_length=200,
        beta=0.04,
        importance_sampling_level="sequence",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=8,
        use_vllm=True,
    ),
    train_dataset=load_dataset("org/prompts", split="train"),
)
trainer.train()
"""
