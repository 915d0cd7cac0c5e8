"""A HuggingFace Trainer that survives: a tiny GPT-2, made here, learns to count. Nothing is downloaded.

    python -m examples.survive.trainer [--steps N] [--seconds S] [--every N] [--jit] --checkpoint DIR

It needs torch, transformers (5.0 or later) and accelerate. The Trainer finds the other ranks by RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT, and reports progress by its own KubeflowCallback. --seconds is how long a step takes at
least, because these steps are small.

--jit is for a single process: it saves by the Trainer's own `enable_jit_checkpoint`, which waits for 3 s after SIGTERM.
With several ranks, that lets each stop after a step of its own, and those that are a step further wait for the others.
"""

import argparse
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

from examples.survive.checkpoint import STOPPED, Stop
from examples.survive.rendezvous import join

NUMBERS, LENGTH = 16, 12


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--jit", action="store_true")
    parser.add_argument("--checkpoint", type=pathlib.Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    set_seed(0)
    if not options.jit:
        join()  # else the Trainer does it, and would join an old peer
    arguments = TrainingArguments(
        output_dir=str(options.checkpoint),
        max_steps=options.steps,
        save_steps=options.every,
        save_total_limit=2,
        logging_steps=10,
        learning_rate=1e-2,
        disable_tqdm=True,
        use_cpu=True,
        ddp_backend=None if options.jit else "gloo",  # one process has no group, and a backend would ask for it
        enable_jit_checkpoint=options.jit,
    )
    counting = [torch.arange(start, start + LENGTH) % NUMBERS for start in range(NUMBERS)] * 16
    data = [{"input_ids": numbers, "labels": numbers} for numbers in counting]
    config = GPT2Config(vocab_size=NUMBERS, n_positions=LENGTH, n_embd=32, n_layer=1, n_head=2, bos_token_id=0)
    config.eos_token_id = 0
    callback = Steps(options.seconds) if options.jit else SaveOnSigterm(options.seconds)
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data, callbacks=[callback])
    trainer.train(resume_from_checkpoint=last_checkpoint(options.checkpoint))
    step = trainer.state.global_step
    if step == options.steps:
        return
    if options.jit:  # which calls no on_save
        print(f"saved a checkpoint at step {number(last_checkpoint(options.checkpoint))}", flush=True)
    print(f"step {step}: told to end", flush=True)
    sys.exit(STOPPED)


def last_checkpoint(folder):
    """The newest complete one: its state is written last. None before the first."""
    found = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    return str(max(found, key=number)) if found else None


def number(checkpoint):
    """Its step."""
    return int(str(checkpoint).rpartition("-")[2])


class Steps(TrainerCallback):
    """Prints how the training goes, and lets each step take so many seconds."""

    def __init__(self, seconds):
        self.seconds = seconds

    def on_train_begin(self, args, state, control, **_):
        if state.global_step and state.is_world_process_zero:
            print(f"resuming from checkpoint at step {state.global_step}", flush=True)

    def on_step_end(self, args, state, control, **_):
        time.sleep(self.seconds)

    def on_log(self, args, state, control, logs, **_):
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step:3} loss {float(logs['loss']):.6f}", flush=True)

    def on_save(self, args, state, control, **_):
        if state.is_world_process_zero:
            print(f"saved a checkpoint at step {state.global_step}", flush=True)


class SaveOnSigterm(Steps):
    """Saves and stops as soon as any rank has got SIGTERM, after the same step on all ranks."""

    def on_train_begin(self, args, state, control, **_):
        super().on_train_begin(args, state, control)
        self.stop = Stop()

    def on_step_end(self, args, state, control, **_):
        super().on_step_end(args, state, control)
        asked = torch.tensor(float(self.stop.asked))
        if dist.is_initialized():
            dist.all_reduce(asked)
        if asked:
            control.should_save = control.should_training_stop = True


if __name__ == "__main__":
    main()
