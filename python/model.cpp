// SPDX-License-Identifier: MIT
#include "python/model.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <filesystem>
#include <limits>

#include "lib/interop/hub_cache.h"
#include "lib/run/imported_model.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::python {
namespace {

namespace nb = nanobind;

Model made(LanguageModel language_model, const std::string& head, int64_t num_labels) {
  language_model.validate();
  check(head == "causal" || head == "classification", ErrorCode::kInvalidArgument, "head is \"",
        head, "\"; it must be \"causal\" or \"classification\"");
  const bool causal = head == "causal";
  std::vector<std::string>& labels = language_model.config().labels;
  if (!causal && num_labels == 0) num_labels = static_cast<int64_t>(labels.size());
  check(causal ? num_labels == 0 : num_labels >= 2, ErrorCode::kInvalidArgument, "num_labels is ",
        num_labels, "; a head for ", head,
        causal ? " has none, leave it out" : " has 2 classes at least, give their number");
  // named like transformers does
  if (!causal && static_cast<int64_t>(labels.size()) != num_labels) {
    labels.clear();
    for (int64_t i = 0; i < num_labels; ++i) labels.push_back(concat("LABEL_", i));
  }
  return {std::move(language_model), causal ? ModelHead::kCausal : ModelHead::kClassification,
          num_labels};
}

LanguageModel described(const std::string& config) {
  if (config.starts_with("{")) {
    return LanguageModel::from_json(
        Json::parse(config, {.error_code = ErrorCode::kInvalidArgument}, "the configuration"));
  }
  if (config.ends_with(".json")) return LanguageModel::from_file(config);
  return LanguageModel::preset(config);
}

// A program's model. Its config.json, if any, names tokens and sizes.
Model of_program(const std::string& directory, bool of_module,
                 std::optional<int> running_statistics_of_rank) {
  Model model;
  model.program = read_program(directory, of_module, running_statistics_of_rank);
  const std::filesystem::path folder = directory;
  if (std::filesystem::exists(folder / "config.json")) {
    model.language_model = LanguageModel(programs::described_by(directory));
  } else {
    DecoderConfig& config = model.language_model.config();
    config = {};
    config.name = model.program->spec.name;
    config.max_positions = 0;
    config.vocabulary = std::numeric_limits<int32_t>::max();
  }
  if (model.program->loss == "classification") {
    model.head = ModelHead::kClassification;
    model.num_labels = static_cast<int64_t>(model.language_model.config().labels.size());
  }
  const bool has_weights = std::filesystem::exists(folder / "model.safetensors") ||
                           std::filesystem::exists(folder / "model.safetensors.index.json");
  if (has_weights) model.weights = directory;
  return model;
}

int64_t count_of(const Model& model) {
  return model.program ? parameter_count(model.program->spec).all
                       : model.language_model.parameter_count(model.head, model.num_labels);
}

std::vector<std::pair<std::string, std::vector<int64_t>>> shapes_of(const Model& model) {
  const ModelSpec spec = model.spec();
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;
  for (const ParameterInfo& parameter : parameters_of(spec)) {
    if (parameter.alias) continue;
    shapes.emplace_back(spec.stored_name(parameter.block, parameter.name), parameter.shape);
  }
  return shapes;
}

}  // namespace

void bind_model(nb::module_& module) {
  nb::class_<Model>(module, "Model",
                    "A built-in language model, or an exported module: its description, and where "
                    "its weights are.")
      .def_static(
          "from_config",
          [](const std::filesystem::path& config, const std::string& head, int64_t num_labels) {
            return made(described(config.string()), head, num_labels);
          },
          nb::arg("config"), nb::arg("head") = "causal", nb::arg("num_labels") = 0,
          "A config.json (its path or its text) of the Hugging Face Hub, or a preset's name such "
          "as "
          "\"bloom-mini\". Weights are drawn from the seed unless Strategy is given some.")
      .def_static(
          "from_pretrained",
          [](const std::filesystem::path& name, const std::string& head, int64_t num_labels) {
            const std::string directory = programs::find_in_hub_cache(name.string());
            Model model = made(LanguageModel::from_directory(directory), head, num_labels);
            model.weights = directory;
            return model;
          },
          nb::arg("directory"), nb::arg("head") = "causal", nb::arg("num_labels") = 0,
          "A directory with config.json and safetensors, or a name of the Hub's local cache.")
      .def_static(
          "from_program",
          [](const std::filesystem::path& directory,
             std::optional<int> running_statistics_of_rank) {
            return of_program(directory.string(), /*of_module=*/false, running_statistics_of_rank);
          },
          nb::arg("directory"), nb::kw_only(), nb::arg("running_statistics_of_rank") = nb::none(),
          "A directory that tessera.export wrote. running_statistics_of_rank: the data rank whose "
          "buffers, such as BatchNorm's statistics, are the model's.")
      .def_static(
          "from_module",
          [](nb::handle module, nb::handle example, nb::handle dynamic, const std::string& task,
             nb::handle dtypes, std::optional<int> running_statistics_of_rank) {
            const nb::object exported = nb::module_::import_("tessera._module").attr("exported");
            const nb::object directory = exported(module, example, dynamic, task, dtypes);
            return of_program(nb::cast<std::string>(directory), /*of_module=*/true,
                              running_statistics_of_rank);
          },
          nb::arg("module"), nb::arg("example"), nb::kw_only(), nb::arg("dynamic") = nb::none(),
          nb::arg("task") = "module", nb::arg("dtypes") = nb::make_tuple("fp32"),
          nb::arg("running_statistics_of_rank") = nb::none(),
          "A torch.nn.Module in memory, exported with its values. Its forward returns a loss, or "
          "the loss's sum and the count to divide it by; with task=\"causal\" the logits of next "
          "tokens. example: tensors by the names of forward's arguments, 2 rows at least. dynamic: "
          "free dimensions such as {\"x\": {0: \"batch\"}}; by default each input's first.")
      .def_prop_ro("task",
                   [](const Model& self) -> std::string {
                     if (self.program && self.program->gives_loss()) return "module";
                     return self.head == ModelHead::kCausal ? "causal" : "classification";
                   })
      .def_prop_ro("name", [](const Model& self) { return self.language_model.config().name; })
      .def_prop_ro("num_labels", [](const Model& self) { return self.num_labels; })
      .def_prop_ro("vocab_size",
                   [](const Model& self) { return self.language_model.config().vocabulary; })
      .def_prop_ro("parameter_count", &count_of)
      .def("parameter_shapes", &shapes_of,
           "(name, shape) of every parameter, by the names of checkpoints.")
      .def(
          "to_json", [](const Model& self) { return self.config_json(); },
          "Its config.json for transformers; empty for an exported program.");
}

}  // namespace tessera::python
