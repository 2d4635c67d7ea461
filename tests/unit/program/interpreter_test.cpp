// SPDX-License-Identifier: MIT
// Operators run as PyTorch runs them.
#include "lib/program/interpreter.h"

#include <map>
#include <memory>

#include "lib/core/file.h"
#include "lib/program/constants.h"
#include "lib/program/graph_reader.h"
#include "lib/program/size_functions.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/program/committed.h"

using namespace tessera;
using namespace tessera::program;
using namespace tessera::test;

namespace {

std::shared_ptr<const Graph> graph_of(const std::string& name) {
  const std::string text = read_file(std::string(TESSERA_CORPUS) + "/program/" + name);
  return std::make_shared<const Graph>(read_graph(Json::parse(text, {}, name)));
}

at::Tensor whole(double value) { return at::full({}, value, at::kDouble); }

double number(const c10::IValue& value) {
  return value.isBool() ? value.toBool() : value.toScalar().toDouble();
}

// The toy module with PyTorch's own numbers: its tensors by name.
struct Toy {
  Toy() : directory(program_directory("toy")), weights(directory) {
    for (const GraphInput& input : train.graph().inputs) {
      if (input.kind == InputKind::kUser) continue;
      const bool stored = weights.has(input.name);
      const Value& value = train.graph().values[static_cast<size_t>(input.value)];
      std::vector<int64_t> shape;
      for (const Extent& extent : value.sizes) shape.push_back(extent.number);
      at::Tensor tensor =
          stored ? weights.read(input.name, shape) : constants.read(input.name, at::kFloat, true);
      if (input.kind == InputKind::kParameter) tensor.requires_grad_();
      tensors[input.name] = tensor;
    }
  }
  at::Tensor loss(const Interpreter& interpreter, const Json& batch) {
    std::vector<at::Tensor> inputs;
    for (const GraphInput& input : interpreter.graph().inputs) {
      if (input.kind != InputKind::kUser) {
        inputs.push_back(tensors.at(input.name));
      } else {
        inputs.push_back(
            tensor_of(batch.at(input.name), input.name == "x" ? at::kFloat : at::kLong));
      }
    }
    const auto outputs = interpreter.run(inputs, at::kCPU);
    return outputs[0] / outputs[1];
  }

  std::string directory;
  HuggingFaceDirectory weights;
  Constants constants{directory + "/program.constants.safetensors"};
  Interpreter train{
      std::make_shared<const Graph>(read_graph_file(directory + "/program.float32.train.json"))};
  std::map<std::string, at::Tensor> tensors;
};

}  // namespace

TEST_CASE("a module with dropout, BatchNorm and a counter trains as in PyTorch") {
  const Json reference = reference_of("toy"), expected = reference.at("optimizers").at("sgd");
  Toy toy;
  REQUIRE(toy.train.draws());
  const double rate = expected.at("settings").at("lr").as_double();
  const Json batches = reference.at("batches");
  for (size_t i = 0; i < batches.size(); ++i) {
    at::manual_seed(100 + i);
    const at::Tensor loss = toy.loss(toy.train, batches.at(i));
    CHECK(loss.item<double>() == Approx(expected.at("loss").at(i).as_double()).epsilon(1e-5));
    loss.backward();
    const at::NoGradGuard no_grad;
    for (auto& [name, tensor] : toy.tensors) {
      if (!tensor.requires_grad()) continue;
      if (i == 0) {
        INFO(name);
        const double norm = expected.at("gradients").at(name).at("norm").as_double();
        CHECK(tensor.grad().norm().item<double>() == Approx(norm).epsilon(1e-4).margin(1e-6));
      }
      tensor.sub_(tensor.grad() * rate);
      tensor.mutable_grad().reset();
    }
  }
  for (const auto& [name, values] : expected.at("buffers").members()) {
    INFO(name);
    const at::Tensor buffer = toy.tensors.at(name).to(at::kDouble);
    const at::Tensor wanted =
        values.is_array() ? tensor_of(values, at::kDouble) : whole(values.as_double());
    CHECK(at::allclose(buffer, wanted, 1e-5, 1e-6));
  }
  const Interpreter evaluation(
      std::make_shared<const Graph>(read_graph_file(toy.directory + "/program.float32.eval.json")));
  CHECK(!evaluation.draws());
}

TEST_CASE("regions without gradients and of another precision run as such") {
  const Interpreter interpreter(graph_of("regions"));
  const at::Tensor weight = at::randn({3, 3}).requires_grad_(), x = at::randn({2, 3});
  const at::Tensor result = interpreter.run({weight, x}, at::kCPU)[0];
  const at::Tensor first = x.matmul(weight.detach());
  const at::Tensor expected = first.to(at::kBFloat16).matmul(weight.to(at::kBFloat16));
  CHECK(result.scalar_type() == at::kBFloat16);
  CHECK(at::equal(result, expected));
  result.sum().to(at::kFloat).backward();
  const at::Tensor ones = at::ones({2, 3}, at::kBFloat16);
  CHECK(at::allclose(weight.grad(), first.to(at::kBFloat16).t().matmul(ones).to(at::kFloat)));
  CHECK(at::GradMode::is_enabled());
}

TEST_CASE("lists go in and out") {
  const Interpreter interpreter(graph_of("lists"));
  const at::Tensor x = at::tensor({1.0F, 5.0F, 3.0F, 2.0F, 4.0F, 6.0F}).view({2, 3});
  const at::Tensor rows = interpreter.run({x}, at::kCPU)[0];
  // Columns 0 and the larger of 1 and 2; of these the columns that the places 0 and 1 name.
  CHECK(at::equal(rows.flatten(), at::tensor({1.0F, 5.0F, 2.0F, 6.0F})));
}

TEST_CASE("an operator that fails is named with its node and file") {
  const Interpreter interpreter(graph_of("one"));
  const std::string message = require_error(
      ErrorCode::kInvalidArgument, [&] { interpreter.run({at::ones({1}, at::kBool)}, at::kCPU); },
      "relu of bool");
  CHECK_THAT(message, contains("one: node r (aten.relu.default)"));
}

TEST_CASE("numbers of sizes follow Python") {
  const auto of = [](const char* name, std::vector<c10::IValue> x) {
    return number(evaluate(name, x));
  };
  const int64_t most = std::numeric_limits<int64_t>::max();
  CHECK(of("_operator.floordiv", {int64_t{-7}, int64_t{2}}) == -4);
  CHECK(of("_operator.mod", {int64_t{-7}, int64_t{3}}) == 2);
  CHECK(of("_operator.mod", {int64_t{7}, int64_t{-3}}) == -2);
  CHECK(of("_operator.truediv", {int64_t{7}, int64_t{2}}) == 3.5);
  CHECK(of("_operator.pow", {int64_t{3}, int64_t{4}}) == 81);
  CHECK(of("math.ceil", {2.5}) == 3);
  CHECK(of("sym_min", {int64_t{2}, int64_t{3}}) == 2);
  CHECK(of("sym_ite", {false, int64_t{2}, int64_t{3}}) == 3);
  CHECK(of("sym_sum", {int64_t{1}, int64_t{2}, int64_t{3}}) == 6);
  CHECK(of("_operator.eq", {int64_t{2}, 2.0}) == 1);
  for (const auto& [name, x] : std::vector<std::pair<const char*, std::vector<c10::IValue>>>{
           {"_operator.mul", {most, int64_t{2}}},
           {"_operator.add", {most, int64_t{1}}},
           {"_operator.floordiv", {int64_t{1}, int64_t{0}}},
           {"_operator.floordiv", {std::numeric_limits<int64_t>::min(), int64_t{-1}}},
           {"_operator.pow", {int64_t{2}, most}},
           {"math.ceil", {1e300}},
           {"_operator.add", {int64_t{1}}}}) {
    const std::string message = require_error(
        ErrorCode::kDataLoss, [&, &name = name, &x = x] { evaluate(name, x); }, name);
    CHECK(!message.empty());
  }
}
