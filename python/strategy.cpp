// SPDX-License-Identifier: MIT
#include "python/strategy.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <filesystem>
#include <set>
#include <tuple>

#include "python/batches.h"
#include "python/job.h"
#include "python/own_loss.h"
#include "python/session.h"
#include "python/tensors.h"
#include "python/weights.h"
#include "tessera/checkpoint/huggingface.h"
#include "tessera/core/error.h"
#include "tessera/model/target_weights.h"

namespace tessera::python {
namespace {

// The value as a number; synchronises.
double number(const at::Tensor& value) {
  const nb::gil_scoped_release released;
  return value.item<double>();
}

// Setting as text for the programs' flags: "zero2", 2, 0.5, True.
std::string setting_text(const std::string& name, nb::handle value) {
  if (nb::isinstance<nb::bool_>(value)) return nb::cast<bool>(value) ? "true" : "false";
  const bool plain = nb::isinstance<nb::str>(value) || nb::isinstance<nb::int_>(value) ||
                     nb::isinstance<nb::float_>(value);
  check(plain, ErrorCode::kInvalidArgument, "setting ", name, " is of type ",
        nb::type_name(value.type()).c_str(), "; settings are texts, numbers or booleans");
  return nb::str(value).c_str();
}

// Names in a module's state_dict that are no parameters of the model: of buffers, and of tied
// parameters.
std::set<std::string> other_names(const Model& model) {
  std::set<std::string> names;
  if (!model.program) return names;
  for (const auto& [name, owner] : model.program->same_as) names.insert(name);
  names.insert(model.program->buffers.begin(), model.program->buffers.end());
  return names;
}

class Trained final : public Resident {
 public:
  Trained(std::shared_ptr<Job> job, const Model& model, nb::handle weights,
          const nb::kwargs& settings)
      : job_(std::move(job)) {
    const Job::Turn turn(*job_, "Strategy");
    const at::Device device = job_->world().device();
    std::unique_ptr<TensorSource> source;
    const GivenWeights* arrays = nullptr;
    if (nb::isinstance<nb::dict>(weights)) {
      auto given = std::make_unique<GivenWeights>(nb::cast<nb::dict>(weights), model.spec(), device,
                                                  other_names(model));
      arrays = given.get();
      source = std::move(given);
    } else if (!weights.is_none()) {
      std::filesystem::path directory;
      check(nb::try_cast(weights, directory), ErrorCode::kInvalidArgument, "weights are of type ",
            nb::type_name(weights.type()).c_str(), "; give {name: array}, a directory, or None");
      source = std::make_unique<HuggingFaceDirectory>(directory.string());
    } else if (!model.weights.empty()) {
      source = std::make_unique<HuggingFaceDirectory>(model.weights);
    }
    SettingTexts texts;
    for (const auto& [key, value] : settings) {
      const std::string name = nb::str(key).c_str();
      texts.emplace_back(name, setting_text(name, value));
    }
    rules_ = {model.head, model.num_labels, model.language_model.config(), device, model.program};
    const nb::gil_scoped_release released;
    // Directories may have other names on other hosts.
    const std::string which = arrays != nullptr   ? "arrays " + arrays->fingerprint()
                              : source != nullptr ? "of a directory"
                                                  : "drawn";
    session_ = std::make_unique<Session>(job_->world(), job_->control(), model, source.get(), which,
                                         texts);
  }

  void end_of_data() override {
    if (session_) session_->end_of_data();
  }
  void close() override { session_.reset(); }

  // Runs fn(session) without the GIL, one thread at a time.
  template <typename Fn>
  auto call(const char* name, const Fn& fn) {
    check(session_ != nullptr, ErrorCode::kInvalidArgument, name,
          "() after the end of its job, or after close(); steps are made inside of `with "
          "tessera.Job() as job:`");
    const Job::Turn turn(*job_, name);
    const nb::gil_scoped_release released;
    return fn(*session_);
  }
  // close() by a program, before the job's end.
  void finish() {
    if (session_ == nullptr) return;
    call("close", [this](Session& session) {
      session.end_of_data();
      session_.reset();
    });
    job_->remove(this);
  }
  const BatchRules& rules() const { return rules_; }

 private:
  std::shared_ptr<Job> job_;
  BatchRules rules_;
  std::unique_ptr<Session> session_;
};

using Batches = nb::handle;

void check_causal(const Trained& self, const char* call) {
  const BatchRules& rules = self.rules();
  check(rules.head == ModelHead::kCausal && !(rules.program && rules.program->gives_loss()),
        ErrorCode::kInvalidArgument, call,
        " is for causal models, which score tokens; a module that returns its loss has the loss in "
        "its forward");
}

StepResult forward_backward(Trained& self, Batches given, nb::handle loss) {
  std::vector<MicroBatch> batches = batches_of(given, self.rules());
  if (loss.is_none()) {
    return self.call("forward_backward", [&](Session& s) { return s.forward_backward(batches); });
  }
  check_causal(self, "forward_backward(batches, loss)");
  for (const MicroBatch& batch : batches) {
    check(!batch.extra.contains(kTargetWeights), ErrorCode::kInvalidArgument,
          "a batch has weights beside loss=; the loss weighs tokens itself");
  }
  const auto values =
      self.call("forward_backward", [&](Session& s) { return s.log_probabilities(batches); });
  const OwnLoss own = derive(loss, values, nb::isinstance<nb::dict>(given));
  return self.call("forward_backward", [&](Session& s) {
    return s.forward_backward(std::move(batches), own.value, own.gradients);
  });
}

nb::object log_probabilities(Trained& self, Batches given) {
  const std::vector<MicroBatch> batches = batches_of(given, self.rules());
  check_causal(self, "log_probabilities()");
  const auto values =
      self.call("log_probabilities", [&](Session& s) { return s.log_probabilities(batches); });
  nb::list arrays;
  for (const at::Tensor& one : values) arrays.append(array_of(one));
  return nb::isinstance<nb::dict>(given) ? nb::object(arrays[0]) : nb::object(arrays);
}

nb::dict state_dict(Trained& self) {
  const auto all = self.call("state_dict", [](Session& s) { return s.state_dict(); });
  nb::dict tensors;
  for (const auto& [name, value] : all) tensors[name.c_str()] = torch_tensor_of(value);
  return tensors;
}

void load_state_dict(Trained& self, const nb::dict& given) {
  const auto [spec, others, device] = self.call("load_state_dict", [&](Session& s) {
    std::set<std::string> names = other_names(s.model());
    return std::tuple(s.spec(), names, self.rules().device);
  });
  const GivenWeights weights(given, spec, device, others);
  std::map<std::string, at::Tensor> buffers;
  for (const auto& [name, value] : weights.tensors()) {
    if (others.contains(name)) buffers[name] = value;
  }
  const std::string text = weights.fingerprint();
  self.call("load_state_dict", [&](Session& s) { s.load_state_dict(weights, text, buffers); });
}

StepResult evaluate(Trained& self, Batches given) {
  const std::vector<MicroBatch> batches = batches_of(given, self.rules());
  return self.call("evaluate", [&](Session& s) { return s.evaluate(batches); });
}

// generate() with tessera-generate's flags of these names.
nb::list generate(Trained& self, const std::vector<std::vector<int64_t>>& prompts,
                  int64_t max_new_tokens, std::optional<int64_t> eos_token_id, bool ignore_eos,
                  bool do_sample, double temperature, int64_t top_k, double top_p, uint64_t seed,
                  int64_t batch_size) {
  GenerationOptions options{.max_new_tokens = max_new_tokens, .batch_size = batch_size};
  if (!eos_token_id) eos_token_id = self.rules().config.eos_token;
  if (eos_token_id && !ignore_eos) options.end_tokens = {*eos_token_id};
  options.without_end_token = options.end_tokens.empty();
  if (do_sample) {
    options.sampling =
        SamplingOptions{.temperature = temperature, .top_k = top_k, .top_p = top_p, .seed = seed};
  }
  const auto rows = self.call("generate", [&](Session& s) { return s.generate(prompts, options); });
  nb::list texts;
  for (const GeneratedRow& row : rows) texts.append(nb::cast(row.ids));
  return texts;
}

nb::dict parameters(Trained& self) {
  const auto all = self.call("parameters", [](Session& s) { return s.parameters(); });
  nb::dict arrays;
  for (const auto& [name, value] : all) arrays[name.c_str()] = array_of(value);
  return arrays;
}

std::map<std::string, int64_t> memory(Trained& self) {
  const StrategyMemory m = self.call("memory", [](Session& s) { return s.memory(); });
  return {{"parameter_bytes", m.parameter_bytes}, {"gradient_bytes", m.gradient_bytes},
          {"optimizer_bytes", m.optimizer_bytes}, {"buffer_bytes", m.buffer_bytes},
          {"host_bytes", m.host_bytes},           {"pinned_bytes", m.pinned_bytes}};
}

void bind_results(nb::module_& module) {
  nb::class_<StepResult>(module, "StepResult",
                         "Of all ranks' micro-batches. Reading a number waits for the device.")
      .def_prop_ro(
          "loss", [](const StepResult& self) { return number(self.loss); },
          "Mean over the supervised tokens (rows) of all ranks.")
      .def_prop_ro("target_count", [](const StepResult& self) { return number(self.target_count); })
      .def_prop_ro(
          "sample_count",
          [](const StepResult& self) { return static_cast<int64_t>(number(self.sample_count)); })
      .def_prop_ro(
          "token_count",
          [](const StepResult& self) { return static_cast<int64_t>(number(self.token_count)); })
      .def_prop_ro(
          "counters",
          [](const StepResult& self) {
            std::vector<double> values;
            for (int64_t i = 0; self.counters.defined() && i < self.counters.numel(); ++i) {
              values.push_back(number(self.counters[i]));
            }
            return values;
          },
          "Classification: correct predictions.");
  nb::class_<ClipResult>(module, "ClipResult", "Reading a number waits for the device.")
      .def_prop_ro(
          "norm", [](const ClipResult& self) { return number(self.norm); }, "Before clipping.")
      .def_prop_ro("coefficient", [](const ClipResult& self) { return number(self.coefficient); })
      .def_prop_ro(
          "skipped", [](const ClipResult& self) { return number(self.overflow) != 0; },
          "The norm is not finite: the step changes nothing.");
}

}  // namespace

void bind_strategy(nb::module_& module) {
  bind_results(module);
  nb::class_<Trained>(
      module, "Strategy",
      "A model spread over the ranks of a job. weights: {name: array} by the names of a "
      "checkpoint of transformers, a directory with safetensors, or None: the model's "
      "own. Settings have the names and values of the programs' flags "
      "(docs/reference/flags.md): strategy=\"zero2\", dtype=\"bf16\", tensor_parallel=2, "
      "optim=\"sgd\", seed=1.\n\nEvery call is collective: all ranks make it.")
      .def(nb::new_([](std::shared_ptr<Job> job, const Model& model, nb::object weights,
                       const nb::kwargs& settings) {
             auto made = std::make_shared<Trained>(job, model, weights, settings);
             job->add(made);
             return made;
           }),
           nb::arg("job"), nb::arg("model"), nb::arg("weights") = nb::none(), nb::arg("settings"))
      .def("forward_backward", &forward_backward, nb::arg("batches"), nb::arg("loss") = nb::none(),
           "A batch {\"input_ids\": ..., \"labels\": ..., \"attention_mask\": ...} of arrays with "
           "DLPack, or "
           "a list of them (micro-batches of one step). labels are as transformers takes them: not "
           "shifted, -100 where there is none. Returns a StepResult.\n\nloss: a function of the "
           "labels' log-probabilities, a torch tensor like labels (a list of them for a list of "
           "batches) with 0 where there is none; returns a scalar, which is averaged over the data "
           "ranks. It takes one pass without gradients and one with them.")
      .def("log_probabilities", &log_probabilities, nb::arg("batches"),
           "The log-probability of each label, without gradients and dropout: an fp32 array like "
           "labels, 0 where there is none; a list of them for a list of batches.")
      .def("state_dict", &state_dict,
           "{name: torch tensor}, whole and on the host, by the module's names: parameters in "
           "fp32, buffers in their own dtypes.")
      .def("load_state_dict", &load_state_dict, nb::arg("state_dict"),
           "Takes the values of arrays by these names, equal on all ranks.")
      .def("evaluate", &evaluate, nb::arg("batches"), "The same without gradients.")
      .def(
          "clip",
          [](Trained& self, double max_norm) {
            return self.call("clip", [&](Session& s) { return s.clip(max_norm); });
          },
          nb::arg("max_norm"),
          "Clips the gradient to this global norm; 0 measures it only. A ClipResult.")
      .def(
          "optimizer_step",
          [](Trained& self, double learning_rate) {
            self.call("optimizer_step", [&](Session& s) { s.optimizer_step(learning_rate); });
          },
          nb::arg("learning_rate"), "Updates the model, unless the gradient is not finite.")
      .def("generate", &generate, nb::arg("prompts"), nb::kw_only(), nb::arg("max_new_tokens") = 20,
           nb::arg("eos_token_id") = nb::none(), nb::arg("ignore_eos") = false,
           nb::arg("do_sample") = false, nb::arg("temperature") = 1.0, nb::arg("top_k") = 0,
           nb::arg("top_p") = 1.0, nb::arg("seed") = 0, nb::arg("batch_size") = 8,
           "Token ids behind each of the prompts, which are lists of ids.")
      .def(
          "save",
          [](Trained& self, const std::filesystem::path& directory, int64_t total_limit) {
            return self.call("save",
                             [&](Session& s) { return s.save(directory.string(), total_limit); });
          },
          nb::arg("directory"), nb::arg("total_limit") = 0,
          "Writes directory/checkpoint-<steps>, which any layout of ranks loads; returns its path. "
          "total_limit: complete ones that remain, 0: all.")
      .def(
          "load",
          [](Trained& self, const std::filesystem::path& path) {
            return self.call("load", [&](Session& s) { return s.load(path.string()); });
          },
          nb::arg("path"),
          "Goes on from a checkpoint, or from the newest of a directory; the steps it has made.")
      .def(
          "export",
          [](Trained& self, const std::filesystem::path& directory) {
            self.call("export", [&](Session& s) { s.export_model(directory.string()); });
          },
          nb::arg("directory"), "Writes a new directory that transformers' from_pretrained opens.")
      .def("parameters", &parameters,
           "{name: array}, whole and in fp32, on every rank's host; numpy.from_dlpack(array) views "
           "one.")
      .def("memory", &memory, "Bytes that this rank holds, by what they are for.")
      .def("close", &Trained::finish,
           "Gives its memory back before the job's end, which does the same.")
      .def_prop_ro(
          "steps",
          [](Trained& self) { return self.call("steps", [](Session& s) { return s.steps(); }); })
      .def_prop_ro(
          "updates",
          [](Trained& self) {
            return self.call("updates", [](Session& s) { return s.updates(); });
          },
          "Steps that were not skipped.")
      .def_prop_ro("loss_scale", [](Trained& self) {
        return self.call("loss_scale", [](Session& s) { return s.loss_scale(); });
      });
}

}  // namespace tessera::python
