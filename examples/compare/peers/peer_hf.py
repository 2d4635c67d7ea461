# SPDX-License-Identifier: MIT
"""transformers.Trainer as its users run it: fp32 weights under autocast, one process or data parallel."""
import peer_common
from peer_common import WORLD


def run(work, torch, transformers, _):
    train(work, torch, transformers, peer_common.load_model(work, transformers, torch.float32), {})


def train(work, torch, transformers, model, versions):
    recorder = peer_common.Recorder(work, torch, {"torch_version": torch.__version__, "transformers_version": transformers.__version__,
                                                  **versions})
    seen = []

    def collate(batch):
        tensors = work.collate(batch, torch)
        seen.append(tensors["input_ids"].numel())
        return tensors

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    class Watch(transformers.TrainerCallback):
        def on_train_begin(self, *_, **__):
            recorder.train_begins()

        def on_log(self, args, state, control, logs=None, **_):
            if logs and "loss" in logs:
                done = min(len(seen), state.global_step * work.gradient_accumulation_steps)
                tokens = sum(seen[done - work.gradient_accumulation_steps:done]) * WORLD
                recorder.step(logs["loss"], logs.get("grad_norm"), logs.get("learning_rate"), tokens)

    arguments = transformers.TrainingArguments(
        work.output_dir, per_device_train_batch_size=work.per_device_train_batch_size, max_steps=work.max_steps,
        gradient_accumulation_steps=work.gradient_accumulation_steps, learning_rate=work.learning_rate, weight_decay=work.weight_decay,
        adam_beta1=work.adam_beta1, adam_beta2=work.adam_beta2, adam_epsilon=work.adam_epsilon, max_grad_norm=work.max_grad_norm,
        lr_scheduler_type=work.lr_scheduler_type, warmup_steps=work.warmup_steps, seed=work.seed, bf16=work.dtype == "bf16",
        fp16=work.dtype == "fp16", gradient_checkpointing=work.gradient_checkpointing, logging_steps=1, save_strategy="no",
        report_to=[], disable_tqdm=True, torch_compile=work.compile, use_cpu=not torch.cuda.is_available(), remove_unused_columns=False)
    trainer = InOrder(model=model, args=arguments, train_dataset=work.all_rows(), data_collator=collate, callbacks=[Watch()])
    trainer.train()
    recorder.end()


if __name__ == "__main__":
    peer_common.main(run, "accelerate")
