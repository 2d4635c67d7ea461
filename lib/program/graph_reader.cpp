// SPDX-License-Identifier: MIT
#include "lib/program/graph_reader.h"

#include <algorithm>
#include <set>
#include <utility>

#include "lib/program/argument_reader.h"
#include "lib/program/operators.h"
#include "tessera/core/error.h"

namespace tessera::program {
namespace {

constexpr int64_t kMajorVersion = 8, kOperatorsVersion = 10, kMostExtent = int64_t{1} << 62;
constexpr size_t kMostNodes = size_t{1} << 20, kMostDims = 16, kMostDepth = 8;
constexpr const char* kNoGrad = "torch.ops.higher_order.wrap_with_set_grad_enabled";
constexpr const char* kAutocast = "torch.ops.higher_order.wrap_with_autocast";

// least: 0 for an extent of a tensor; a number that is computed of them may be negative.
Extent read_extent(const Json& json, int64_t least) {
  const auto [kind, value] = kind_of(json);
  if (kind == "as_int") return {.number = value.as_int64(least, kMostExtent)};
  if (kind != "as_expr") json.fail(concat("an extent is given as \"", kind, "\""));
  return {.expression = value.at("expr_str").as_string()};
}

// The target without the module that it lies in: "aten.add.Tensor".
std::string short_target(const std::string& target) {
  for (const std::string prefix :
       {"torch.ops.", "torch.sym_", "torch._sym_", "math.", "_operator."}) {
    if (!target.starts_with(prefix)) continue;
    if (prefix == "torch.ops.") return target.substr(prefix.size());
    if (prefix == "torch._sym_") return "sym_" + target.substr(prefix.size());
    if (prefix == "torch.sym_") return "sym_" + target.substr(prefix.size());
    return target;
  }
  if (target.starts_with("torch.fx.experimental.symbolic_shapes.sym_")) {
    return target.substr(target.rfind('.') + 1);
  }
  return target;
}

// Entries are "key,path,type", with ";" between them.
void read_modules(const std::string& stack, Node& node) {
  for (size_t begin = 0; begin < stack.size();) {
    const size_t end = std::min(stack.find(';', begin), stack.size());
    const std::string entry = stack.substr(begin, end - begin);
    begin = end + 1;
    const size_t first = entry.find(',');
    if (first == std::string::npos) continue;
    const size_t second = std::min(entry.find(',', first + 1), entry.size());
    std::string path = entry.substr(first + 1, second - first - 1);
    if (path.starts_with("_empty_nn_module_stack")) continue;
    node.call = path;
    const std::string type = entry.substr(std::min(second + 1, entry.size()));
    node.module_class = type.substr(type.rfind('.') + 1);
    // A module that is called again is "path@1".
    if (const size_t at = path.find('@'); at != std::string::npos) path.resize(at);
    if (!path.empty()) node.modules.push_back(std::move(path));
  }
}

class GraphReader {
 public:
  explicit GraphReader(const Json& json) : json_(json) { graph_.file = json.origin(); }

  Graph read() {
    check_versions();
    const Json module = json_.at("graph_module"), graph = module.at("graph");
    Scope scope;
    read_inputs(graph, module.at("signature"), scope);
    read_nodes(graph, scope, {}, 0);
    for (const Json& output : graph.at("outputs").items()) {
      graph_.outputs.push_back(output_value(output, scope));
    }
    check_outputs(module.at("signature"));
    return std::move(graph_);
  }

 private:
  void check_versions() const {
    const Json schema = json_.at("schema_version");
    const int64_t major = schema.at("major").as_int64();
    if (major != kMajorVersion) {
      schema.fail(concat("the format's version is ", major, ", expected ", kMajorVersion,
                         "; export it again with torch 2.11"));
    }
    const Json opsets = json_.at("opset_version");
    for (const auto& [name, version] : opsets.members()) {
      if (name == "aten" && version.as_int64() == kOperatorsVersion) continue;
      version.fail(concat("operators of \"", name, "\" in version ", version.dump(),
                          " are not known; expected aten in version ", kOperatorsVersion));
    }
    if (!opsets.contains("aten")) opsets.fail("expected the version of aten");
  }

  ValueId add_value(const std::string& name, ValueKind kind, const Json& place, Scope& scope) {
    if (name.empty()) place.fail("a value without a name");
    const auto id = static_cast<ValueId>(graph_.values.size());
    if (!scope.emplace(name, id).second) place.fail(concat("\"", name, "\" is made twice"));
    graph_.values.push_back({.name = name, .kind = kind});
    return id;
  }

  void describe(ValueId id, const Json& graph) {
    Value& value = graph_.values[static_cast<size_t>(id)];
    if (value.kind == ValueKind::kTensor) {
      const auto meta = graph.at("tensor_values").find(value.name);
      if (!meta) return;
      value.dtype = read_dtype(meta->at("dtype"));
      const Json sizes = meta->at("sizes");
      if (sizes.size() > kMostDims) sizes.fail(concat("more than ", kMostDims, " dimensions"));
      for (const Json& size : sizes.items()) value.sizes.push_back(read_extent(size, 0));
    } else if (value.kind == ValueKind::kInteger) {
      const auto meta = graph.at("sym_int_values").find(value.name);
      if (meta) value.extent = read_extent(*meta, -kMostExtent);
    }
  }

  GraphInput input_of(const Json& spec) const {
    const auto [kind, of_kind] = kind_of(spec);
    if (kind == "parameter") {
      return {InputKind::kParameter, of_kind.at("parameter_name").as_string()};
    }
    if (kind == "buffer") return {InputKind::kBuffer, of_kind.at("buffer_name").as_string()};
    if (kind == "tensor_constant") {
      return {InputKind::kConstant, of_kind.at("tensor_constant_name").as_string()};
    }
    if (kind == "user_input") return {InputKind::kUser, ""};
    spec.fail(concat("an input of kind \"", kind,
                     "\" is not supported; expected parameters, buffers, constants and tensors"));
  }

  void read_inputs(const Json& graph, const Json& signature, Scope& scope) {
    const std::vector<Json> values = graph.at("inputs").items();
    const Json specs = signature.at("input_specs");
    if (specs.size() != values.size()) {
      specs.fail(concat("describes ", specs.size(), " inputs, but the graph has ", values.size()));
    }
    std::set<std::pair<InputKind, std::string>> names;
    for (size_t i = 0; i < values.size(); ++i) {
      const auto [kind, value] = kind_of(values[i]);
      if (kind != "as_tensor") values[i].fail("inputs of programs are tensors");
      GraphInput input = input_of(specs.at(i));
      input.value = add_value(value.at("name").as_string(), ValueKind::kTensor, value, scope);
      if (input.kind == InputKind::kUser) input.name = graph_.values.back().name;
      if (!names.emplace(input.kind, input.name).second) {
        specs.at(i).fail(concat("\"", input.name, "\" is an input twice"));
      }
      describe(input.value, graph);
      graph_.inputs.push_back(std::move(input));
    }
  }

  void read_nodes(const Json& graph, Scope& scope, const Region& region, size_t depth) {
    for (const Json& json : graph.at("nodes").items()) {
      const std::string target = json.at("target").as_string();
      const std::string name = node_name(json);
      try {
        if (graph_.nodes.size() >= kMostNodes)
          json.fail(concat("more than ", kMostNodes, " nodes"));
        if (target == kNoGrad || target == kAutocast) {
          read_region(json, graph, target, scope, region, depth + 1);
        } else if (!is_dropped(short_target(target))) {
          read_node(json, graph, name, short_target(target), scope, region);
        }
      } catch (const Error& error) {
        if (noted_) throw;
        noted_ = true;  // regions lie inside each other
        fail(error.code(), error.what(), " [node ", name, ", operator ", target, "]");
      }
    }
  }

  std::string node_name(const Json& json) const {
    const std::string name = json.get("name", "");
    return name.empty() ? concat("number ", graph_.nodes.size()) : name;
  }

  void read_node(const Json& json, const Json& graph, const std::string& name,
                 const std::string& target, Scope& scope, const Region& region) {
    if (find_operator(target) == nullptr && !is_size_function(target)) {
      json.at("target").fail(concat("the operator ", target, " is not supported in programs"));
    }
    Node node{.name = name, .target = target, .region = region};
    for (const Json& input : json.at("inputs").items()) {
      node.arguments.push_back(
          {input.at("name").as_string(), read_argument(input.at("arg"), scope)});
    }
    for (const Json& output : json.at("outputs").items()) {
      node.outputs.push_back(read_output(output, graph, scope));
    }
    if (const auto metadata = json.find("metadata")) {
      read_modules(metadata->get("nn_module_stack", ""), node);
    }
    graph_.nodes.push_back(std::move(node));
  }

  Output read_output(const Json& json, const Json& graph, Scope& scope) {
    const auto [kind, value] = kind_of(json);
    const auto add = [&](const std::string& name, ValueKind of_kind) {
      const ValueId id = add_value(name, of_kind, value, scope);
      describe(id, graph);
      return id;
    };
    const auto number = [&, &given = value](ValueKind of_kind) {
      const auto named = given.find("as_name");
      return Output{{named ? add(named->as_string(), of_kind) : kNoValue}};
    };
    if (kind == "as_none") return {{kNoValue}};
    if (kind == "as_tensor") return {{add(value.at("name").as_string(), ValueKind::kTensor)}};
    if (kind == "as_sym_int") return number(ValueKind::kInteger);
    if (kind == "as_sym_bool") return number(ValueKind::kBool);
    if (kind == "as_sym_float") return number(ValueKind::kNumber);
    if (kind == "as_tensors") {
      Output output{.is_list = true};
      for (const Json& member : value.items()) {
        output.values.push_back(add(member.at("name").as_string(), ValueKind::kTensor));
      }
      return output;
    }
    json.fail(concat("a result of kind \"", kind, "\" is not supported in programs"));
  }

  // The region's nodes stand in the graph as all others do; names inside it are its own.
  void read_region(const Json& json, const Json& outer, const std::string& target, Scope& scope,
                   const Region& around, size_t depth) {
    if (depth > kMostDepth) json.fail(concat("more than ", kMostDepth, " regions in each other"));
    const std::vector<Json> inputs = json.at("inputs").items();
    const size_t settings = target == kNoGrad ? 1 : 4;
    if (inputs.size() <= settings) json.fail("expected the region's settings and its graph");
    const auto setting = [&](size_t i, const char* kind) { return inputs[i].at("arg").at(kind); };
    Region region = around;
    if (target == kNoGrad) {
      region.no_grad = !setting(0, "as_bool").as_bool();
    } else {
      region.autocast = setting(2, "as_bool").as_bool();
      if (region.autocast) region.autocast_dtype = read_dtype(setting(1, "as_scalar_type"));
    }
    const Json graph = setting(settings, "as_graph").at("graph");
    Scope inner;
    const std::vector<Json> parameters = graph.at("inputs").items();
    if (inputs.size() - settings - 1 != parameters.size()) {
      graph.fail(concat("the region takes ", parameters.size(), " values, but is given ",
                        inputs.size() - settings - 1));
    }
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Json& given = inputs[settings + 1 + i];
      bind(parameters[i], output_value(given.at("arg"), scope), inner);
    }
    read_nodes(graph, inner, region, depth);
    const std::vector<Json> results = graph.at("outputs").items(),
                            outputs = json.at("outputs").items();
    if (results.size() != outputs.size())
      json.fail("the region's results are not those of its graph");
    for (size_t i = 0; i < outputs.size(); ++i)
      bind(outputs[i], output_value(results[i], inner), scope);
  }

  // The name that is given there stands for the value.
  static void bind(const Json& json, ValueId value, Scope& scope) {
    const auto [kind, named] = kind_of(json);
    if (kind == "as_none") return;
    const std::string name = named.at(kind == "as_tensor" ? "name" : "as_name").as_string();
    if (!scope.emplace(name, value).second) json.fail(concat("\"", name, "\" is made twice"));
  }

  static ValueId output_value(const Json& json, const Scope& scope) {
    const Argument argument = read_argument(json, scope);
    const auto* item = std::get_if<Item>(&argument);
    const auto* value = item == nullptr ? nullptr : std::get_if<ValueRef>(item);
    if (value == nullptr) json.fail("expected a value");
    return value->id;
  }

  void check_outputs(const Json& signature) const {
    const Json specs = signature.at("output_specs");
    if (specs.size() != graph_.outputs.size()) {
      specs.fail(concat("describes ", specs.size(), " results, but the graph has ",
                        graph_.outputs.size()));
    }
    for (const Json& spec : specs.items()) {
      const std::string kind = kind_of(spec).first;
      if (kind != "user_output") {
        spec.fail(concat("a result of kind \"", kind,
                         "\" is not supported: export for training, torch.export.export(), not "
                         "decomposed"));
      }
    }
  }

  const Json& json_;
  Graph graph_;
  bool noted_ = false;  // the error names its node
};

}  // namespace

Graph read_graph(const Json& json) { return GraphReader(json).read(); }

Graph read_graph_file(const std::string& path) {
  return read_graph(Json::parse_file(path, {.max_bytes = size_t{512} << 20, .max_depth = 96}));
}

}  // namespace tessera::program
