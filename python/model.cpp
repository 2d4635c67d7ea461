// SPDX-License-Identifier: MIT
#include "python/model.h"

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <filesystem>

#include "lib/interop/hub_cache.h"
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
                    "A built-in language model: its description, and where its weights are.")
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
      .def_prop_ro("name", [](const Model& self) { return self.language_model.config().name; })
      .def_prop_ro("num_labels", [](const Model& self) { return self.num_labels; })
      .def_prop_ro("vocab_size",
                   [](const Model& self) { return self.language_model.config().vocabulary; })
      .def_prop_ro("parameter_count",
                   [](const Model& self) {
                     return self.language_model.parameter_count(self.head, self.num_labels);
                   })
      .def("parameter_shapes", &shapes_of,
           "(name, shape) of every parameter, by the names of checkpoints.")
      .def(
          "to_json", [](const Model& self) { return self.language_model.to_json(self.head); },
          "Its config.json for transformers.");
}

}  // namespace tessera::python
