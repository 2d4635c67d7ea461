#include "examples/common/memory_advice.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <new>

#include "examples/common/layout.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"
#include "tessera/core/host_memory.h"
#include "tessera/plan/activations.h"

namespace tessera::programs {
namespace {

struct Need {
  LayoutCost state;
  double activations = 0;
  double total() const { return state.device_bytes() + activations; }
};

Need need_of(const Prepared& run, const TrainOptions& o, int64_t ranks) {
  const LayoutPlan plan = layout_plan(run.model, o, static_cast<int>(ranks));
  const int64_t length =
      o.pad_to_max_length ? o.max_seq_length : std::min(o.max_seq_length, run.train.longest());
  double activations = 0;
  for (const Activations& stage : activations_of(plan, batch_shape(run, o, length))) {
    activations = std::max(activations, stage.total());
  }
  return {largest_layout_cost(plan), activations};
}

std::string describe(const Need& need) {
  std::string text = concat("One rank needs about ", mebibytes(need.total()), ": parameters ",
                            mebibytes(need.state.parameter_bytes), ", gradients ",
                            mebibytes(need.state.gradient_bytes), ", optimizer ",
                            mebibytes(need.state.optimizer_bytes), ", activations about ",
                            mebibytes(need.activations));
  if (need.state.buffer_bytes > 0) text += ", buffers " + mebibytes(need.state.buffer_bytes);
  if (need.state.host_bytes > 0) text += "; on the host " + mebibytes(need.state.host_bytes);
  return text;
}

}  // namespace

std::string memory_need(const Prepared& run, int64_t ranks) {
  return describe(need_of(run, run.options, ranks));
}

void check_host_memory(const Prepared& run, int64_t ranks, int64_t ranks_on_host) {
  const auto available = static_cast<double>(available_host_memory());
  Need need = need_of(run, run.options, ranks);
  need.activations = 0;
  const double wanted = (need.total() + need.state.host_bytes) * static_cast<double>(ranks_on_host);
  if (wanted <= available) return;
  fail(ErrorCode::kResourceExhausted,
       memory_advice(run, ranks,
                     concat(ranks_on_host, " rank(s) on this host need ", mebibytes(wanted),
                            " without activations, ", mebibytes(available), " are available")));
}

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  const auto* torch =
      dynamic_cast<const c10::Error*>(&error);  // the CPU allocator has no type of its own
  return torch != nullptr && torch->msg().find("DefaultCPUAllocator") != std::string::npos;
}

std::string mebibytes(double bytes) {
  char text[64];
  std::snprintf(text, sizeof(text), bytes < 100 * 1048576 ? "%.1f MiB" : "%.0f MiB",
                bytes / 1048576);
  return text;
}

std::string memory_advice(const Prepared& run, int64_t ranks, const std::string& reason) {
  const TrainOptions& o = run.options;
  const Need now = need_of(run, o, ranks);
  struct Option {
    std::string flags;
    double saved;
  };
  std::vector<Option> options;
  auto add = [&](const std::string& flags, const TrainOptions& changed, int64_t changed_ranks) {
    options.push_back({flags, now.total() - need_of(run, changed, changed_ranks).total()});
  };
  TrainOptions sharded = o;
  sharded.strategy = "zero3";
  const int64_t more = ranks == 1 ? 4 : o.strategy == "zero3" ? 2 * ranks : ranks;
  add(concat("--strategy zero3", more == ranks ? "" : concat(" on ", more, " ranks")), sharded,
      more);
  if (o.dtype == "fp32") {
    TrainOptions changed = o;
    changed.dtype = "bf16";
    add("--dtype bf16", changed, ranks);
  }
  if (o.per_device_train_batch_size > 1) {
    TrainOptions changed = o;
    changed.per_device_train_batch_size = (o.per_device_train_batch_size + 1) / 2;
    add(concat("--per_device_train_batch_size ", changed.per_device_train_batch_size,
               " --gradient_accumulation_steps ", o.gradient_accumulation_steps * 2),
        changed, ranks);
  }
  TrainOptions shorter = o;
  shorter.max_seq_length =
      std::max<int64_t>(1, std::min(o.max_seq_length, run.train.longest()) / 2);
  add(concat("--max_seq_length ", shorter.max_seq_length), shorter, ranks);
  if (!o.gradient_checkpointing) {
    TrainOptions changed = o;
    changed.gradient_checkpointing = true;
    add("--gradient_checkpointing", changed, ranks);
  }
  if (run.config().heads % (2 * o.tensor_parallel) == 0) {
    TrainOptions changed = o;
    changed.tensor_parallel *= 2;
    add(concat("--tensor_parallel ", changed.tensor_parallel, " on ", 2 * ranks, " ranks"), changed,
        2 * ranks);
  }
  if (o.offload == "none" && o.strategy != "ddp" && gpu_count() > 0) {
    TrainOptions changed = o;
    changed.offload = "optimizer";
    add("--offload optimizer", changed, ranks);
  }
  std::stable_sort(options.begin(), options.end(),
                   [](const Option& a, const Option& b) { return a.saved > b.saved; });
  std::string text =
      concat(reason.substr(0, reason.find('\n')), ". ", describe(now), ". What would help:");
  for (size_t i = 0; i < std::min<size_t>(3, options.size()); ++i) {
    text += concat(i == 0 ? " " : "; ", options[i].flags, " saves ", mebibytes(options[i].saved));
  }
  return text;
}

}  // namespace tessera::programs
