// SPDX-License-Identifier: MIT
// Defects in ranks' operations, on one rank or on all: each is found without a run, with rank,
// operation and tensor. Otherwise it is of a kind that only parity can find.
#include "tessera/models/language_model.h"
#include "tessera/optim/muon.h"
#include "tessera/plan/check_communication.h"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"
#include "tests/unit/plan/layouts.h"
#include "tests/unit/plan/planted_defect.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

using Kind = OperationKind;

constexpr int kAllRanks = -1;

struct TestLayout {
  ParallelConfig parallel;
  MeshExtents mesh;
  int accumulation = 1;
  OptimizerFactory optimizer = make_adamw({});
};

std::string name_of(const TestLayout& at) {
  return concat(at.parallel.strategy, " ", at.mesh.pipeline, "x", at.mesh.data, "x", at.mesh.tensor,
                at.mesh.pipeline > 1 ? " " + at.parallel.pipeline.schedule : "",
                at.parallel.pipeline.shared_vocabulary ? " shared vocabulary" : "",
                at.parallel.offload.what == Offload::kNone ? "" : " offload");
}

// Result of the check for a defect on one rank, or on all.
struct Answer {
  CommunicationCheck check;
  Planted planted;  // on the rank, or on the last one
};

Answer ask(const TestLayout& at, const PlantedDefect& defect, int rank) {
  const Layout layout{
      at.parallel, at.mesh, at.accumulation,
      causal(sized("bloom", {.vocabulary = 512, .hidden = 128, .heads = 4, .layers = 3}))};
  Answer answer;
  std::vector<std::unique_ptr<Planted>> kept;
  const FakeMesh::Wrap wrap = [&](std::unique_ptr<Communicator> world) {
    if (rank != kAllRanks && world->rank() != rank) return world;
    kept.push_back(std::make_unique<Planted>());
    return plant(std::move(world), defect, *kept.back());
  };
  answer.check = check_communication({.model = layout.model,
                                      .parallel = at.parallel,
                                      .optimizer = at.optimizer,
                                      .mesh = at.mesh,
                                      .coordinate = {},
                                      .micro_batches = batches_of(layout)},
                                     {.wrap = wrap, .every_rank = true});
  for (const auto& each : kept) {
    if (each->times > 0) answer.planted = *each;
  }
  return answer;
}

int planted_defects = 0;

std::string title_of(const TestLayout& at, const PlantedDefect& defect, int rank) {
  return concat(name_of(at), ": ", name_of(defect.kind), " over ", defect.axis, " ",
                name_of(defect.wrong), rank == kAllRanks ? " on all ranks" : "");
}

// Requires that the defect is found, and that the message names the tensor, and the rank if a
// single one is at fault.
void require_found(const TestLayout& at, const PlantedDefect& defect, int rank) {
  ++planted_defects;
  const Answer answer = ask(at, defect, rank);
  INFO(title_of(at, defect, rank));
  CHECK(answer.planted.times > 0);
  bool named = false;
  std::string said;
  for (const CommunicationProblem& each : answer.check.problems) {
    const std::string text = to_text(each);
    if (said.size() < 2000) said += text + "\n";
    const bool of_rank = rank == kAllRanks || each.rank == rank || each.other_rank == rank;
    // Reductions and gathers of units name a parameter of the unit.
    const bool of_tensor =
        rank == kAllRanks
            ? !each.tensor.empty()
            : text.find(answer.planted.tensor) != std::string::npos && each.operation >= 0;
    named = named || (of_rank && of_tensor);
  }
  INFO("planted on " << answer.planted.tensor << ", said:\n" << said);
  CHECK(named);
}

// All ranks do the same, and no placement rule is broken: only numbers are wrong.
void require_left_to_parity(const TestLayout& at, const PlantedDefect& defect, int rank) {
  const Answer answer = ask(at, defect, rank);
  INFO(title_of(at, defect, rank));
  CHECK(answer.planted.times > 0);
  CHECK(answer.check.problems.empty());
}

TestLayout place(const std::string& strategy, MeshExtents mesh, int accumulation = 1) {
  TestLayout made{.parallel = {.strategy = strategy}, .mesh = mesh, .accumulation = accumulation};
  made.parallel.persistence_threshold = 1000;
  return made;
}

TestLayout piped(const std::string& strategy, const std::string& schedule, MeshExtents mesh) {
  TestLayout made = place(strategy, mesh, 4);
  made.parallel.pipeline = {.schedule = schedule, .chunks = schedule == "interleaved" ? 2 : 1};
  return made;
}

std::vector<TestLayout> data_places() {
  std::vector<TestLayout> all;
  for (const char* name : {"ddp", "zero1", "zero2", "zero3", "fsdp"}) {
    all.push_back(place(name, {.data = 2}, 2));
  }
  TestLayout hybrid = place("fsdp", {.data = 4});
  hybrid.parallel.shard_ranks = 2;
  all.push_back(hybrid);
  TestLayout offload = place("zero1", {.data = 2});
  offload.parallel.offload = {.what = Offload::kOptimizer};
  all.push_back(offload);
  offload.parallel.strategy = "zero3";
  offload.parallel.offload.what = Offload::kOptimizerAndParameters;
  all.push_back(offload);
  return all;
}

}  // namespace

TEST_CASE("planted defects in sums of gradients are found under every strategy") {
  for (const TestLayout& at : data_places()) {
    const bool whole = at.parallel.strategy == "ddp";
    const Kind kind = whole ? Kind::kAllReduce : Kind::kReduceScatter;
    const PlantedDefect sum{.kind = kind, .axis = "data", .phase = "reduce", .which = 2};
    for (const Wrong wrong :
         {Wrong::kSkipped, Wrong::kDoubled, Wrong::kCount, Wrong::kDtype, Wrong::kReduction}) {
      PlantedDefect defect = sum;
      defect.wrong = wrong;
      require_found(at, defect, 1);
      // The repeated in-place sum affects only a part that ranks do not use again.
      const bool harmless = wrong == Wrong::kDoubled && !whole;
      if (!harmless) require_found(at, defect, kAllRanks);
    }
  }
}

TEST_CASE("planted defects in gathers of parameters are found under every strategy") {
  for (const TestLayout& at : data_places()) {
    if (at.parallel.strategy == "ddp") continue;
    const PlantedDefect gather{.kind = Kind::kAllGather, .axis = "data", .which = 3};
    for (const Wrong wrong : {Wrong::kSkipped, Wrong::kCount, Wrong::kDtype, Wrong::kNotWaited}) {
      PlantedDefect defect = gather;
      defect.wrong = wrong;
      if (wrong != Wrong::kNotWaited) require_found(at, defect, 0);
      require_found(at, defect, kAllRanks);
    }
  }
}

TEST_CASE("planted defects in messages of a pipeline are found under every schedule") {
  std::vector<TestLayout> all{piped("ddp", "gpipe", {.pipeline = 2}),
                              piped("zero1", "1f1b", {.pipeline = 3}),
                              piped("zero2", "interleaved", {.pipeline = 2, .data = 2}),
                              piped("zero1", "zbh1", {.pipeline = 2, .data = 2})};
  all.push_back(piped("zero3", "1f1b", {.pipeline = 3}));
  all.back().parallel.pipeline.shared_vocabulary = true;
  for (const TestLayout& at : all) {
    for (const Kind kind : {Kind::kSend, Kind::kRecv}) {
      for (const Wrong wrong : {Wrong::kSkipped, Wrong::kDoubled, Wrong::kCount, Wrong::kDtype}) {
        require_found(at, {.wrong = wrong, .kind = kind, .axis = "pipeline", .which = 2}, 1);
      }
    }
    if (at.mesh.pipeline == 3) {
      require_found(at, {.wrong = Wrong::kPartner, .kind = Kind::kSend, .axis = "pipeline"}, 1);
    }
    // A message sent twice and received once, on all ranks alike.
    require_found(at, {.wrong = Wrong::kDoubled, .kind = Kind::kSend, .axis = "pipeline"},
                  kAllRanks);
  }
}

TEST_CASE("planted defects of operations in the wrong order are found") {
  for (const TestLayout& at : data_places()) {
    const bool whole = at.parallel.strategy == "ddp";
    require_found(at,
                  {.wrong = Wrong::kReordered,
                   .kind = whole ? Kind::kAllReduce : Kind::kReduceScatter,
                   .axis = "data",
                   .phase = "reduce",
                   .which = 1},
                  1);
  }
  // The gradient's reduction waits for the peer, which waits for the message.
  const TestLayout at = piped("zero2", "1f1b", {.pipeline = 2, .data = 2});
  require_found(at, {.wrong = Wrong::kReordered, .kind = Kind::kSend, .axis = "pipeline"}, 0);
}

TEST_CASE("planted defects of the wrong axis are found") {
  for (const char* name : {"ddp", "zero1", "zero2", "zero3", "fsdp"}) {
    const TestLayout at = place(name, {.data = 2, .tensor = 2});
    const bool whole = at.parallel.strategy == "ddp";
    const PlantedDefect sum{.wrong = Wrong::kAxis,
                            .kind = whole ? Kind::kAllReduce : Kind::kReduceScatter,
                            .axis = "data",
                            .phase = "reduce",
                            .which = 1};
    require_found(at, sum, 3);
    require_found(at, sum, kAllRanks);
    if (whole) continue;
    const PlantedDefect gather{
        .wrong = Wrong::kAxis, .kind = Kind::kAllGather, .axis = "data", .which = 3};
    require_found(at, gather, 0);
    require_found(at, gather, kAllRanks);
  }
}

TEST_CASE("planted defects in what ranks of a tensor axis do are found") {
  for (const bool sequence : {false, true}) {
    TestLayout at = place("zero1", {.data = 2, .tensor = 2});
    at.parallel.sequence_parallel = sequence;
    const Kind kind = sequence ? Kind::kReduceScatter : Kind::kAllReduce;
    for (const char* phase : {"forward", "backward"}) {
      for (const Wrong wrong : {Wrong::kSkipped, Wrong::kDoubled, Wrong::kCount, Wrong::kDtype,
                                Wrong::kReduction, Wrong::kAxis}) {
        require_found(
            at, {.wrong = wrong, .kind = kind, .axis = "tensor", .phase = phase, .which = 1}, 2);
      }
    }
    if (!sequence) continue;
    // Norms on the rank's own tokens: partial gradient sums.
    for (const Wrong wrong : {Wrong::kSkipped, Wrong::kDoubled, Wrong::kReduction, Wrong::kAxis}) {
      const PlantedDefect late{
          .wrong = wrong, .kind = Kind::kAllReduce, .axis = "tensor", .phase = "reduce"};
      require_found(at, late, 1);
      require_found(at, late, kAllRanks);
    }
  }
}

TEST_CASE("planted defects in what replicas of one parameter sum are found") {
  const TestLayout tied = piped("zero1", "1f1b", {.pipeline = 2, .data = 2});
  TestLayout copies = place("fsdp", {.data = 4});
  copies.parallel.shard_ranks = 2;
  const PlantedDefect of_ties{.kind = Kind::kAllReduce, .axis = "pipeline.", .phase = "reduce"};
  const PlantedDefect of_copies{.kind = Kind::kAllReduce, .axis = "data.1", .phase = "reduce"};
  for (const auto& [at, given] : {std::pair(tied, of_ties), std::pair(copies, of_copies)}) {
    for (const Wrong wrong : {Wrong::kSkipped, Wrong::kDoubled, Wrong::kCount, Wrong::kReduction}) {
      PlantedDefect defect = given;
      defect.wrong = wrong;
      require_found(at, defect, 1);
      require_found(at, defect, kAllRanks);
    }
  }
}

TEST_CASE("planted defects in messages and broadcasts are found") {
  TestLayout owners = place("zero2", {.data = 3});
  owners.optimizer = make_muon({.ns_steps = 0}, make_adamw({}));
  for (const Wrong wrong :
       {Wrong::kSkipped, Wrong::kDoubled, Wrong::kCount, Wrong::kDtype, Wrong::kPartner}) {
    require_found(owners, {.wrong = wrong, .kind = Kind::kSend, .axis = "data"}, 1);
  }
  TestLayout told =
      owners;  // every rank has the whole matrix, and one of them broadcasts its update
  told.parallel.strategy = "ddp";
  TestLayout shared = piped("zero1", "1f1b", {.pipeline = 3});
  shared.parallel.pipeline.shared_vocabulary = true;
  for (const auto& [at, axis] : {std::pair(told, "data"), std::pair(shared, "pipeline")}) {
    for (const Wrong wrong :
         {Wrong::kSkipped, Wrong::kDoubled, Wrong::kCount, Wrong::kDtype, Wrong::kRoot}) {
      require_found(at, {.wrong = wrong, .kind = Kind::kBroadcast, .axis = axis, .which = 1}, 1);
    }
  }
}

// All ranks do the same, so operations match. Only an activation, a scalar or an update is wrong,
// not a gradient's sum or a parameter. A message that neither end calls is also of this kind.
TEST_CASE("kinds of defects that are left to parity") {
  const TestLayout tensor = place("zero1", {.data = 2, .tensor = 2});
  for (const Wrong wrong : {Wrong::kSkipped, Wrong::kDoubled, Wrong::kReduction, Wrong::kCount}) {
    require_left_to_parity(
        tensor, {.wrong = wrong, .kind = Kind::kAllReduce, .axis = "tensor", .phase = "forward"},
        kAllRanks);
  }
  const TestLayout data = place("zero1", {.data = 2});
  for (const char* phase : {"forward", "step"}) {  // batch counts; the gradient norm
    require_left_to_parity(
        data, {.wrong = Wrong::kSkipped, .kind = Kind::kAllReduce, .axis = "data", .phase = phase},
        kAllRanks);
  }
  TestLayout told = place("ddp", {.data = 3});
  told.optimizer = make_muon({.ns_steps = 0}, make_adamw({}));
  for (const Wrong wrong : {Wrong::kSkipped, Wrong::kRoot}) {
    require_left_to_parity(told, {.wrong = wrong, .kind = Kind::kBroadcast, .axis = "data"},
                           kAllRanks);
  }
}

TEST_CASE("defects were planted") {
  if (planted_defects > 0) CHECK(planted_defects >= 60);  // cases may run alone
}
