// SPDX-License-Identifier: MIT
#include "tests/unit/plan/planted_defect.h"

#include <ATen/ATen.h>

#include <array>
#include <optional>
#include <utility>

#include "lib/comm/operation_scope.h"
#include "tessera/core/error.h"

namespace tessera::testing {
namespace {

class Works final : public Work::Impl {
 public:
  explicit Works(std::vector<Work> works) : works_(std::move(works)) {}
  void wait() override {
    for (Work& work : works_) work.wait();
  }

 private:
  std::vector<Work> works_;
};

class PlantedRank;

// All communicators of a rank.
struct Rank {
  const PlantedDefect defect;
  Planted& planted;
  int seen = 0;
  std::vector<PlantedRank*> communicators = {};
  struct Held {
    PlantedRank* by;
    Operation operation;
    std::string name;
    Work work = {};
  };
  std::shared_ptr<Held> held = nullptr;  // until the next operation has started
};

class PlantedRank final : public Communicator {
 public:
  PlantedRank(std::unique_ptr<Communicator> inner, std::shared_ptr<Rank> rank, std::string axis)
      : inner_(std::move(inner)), rank_(std::move(rank)), axis_(std::move(axis)) {
    rank_->communicators.push_back(this);
  }
  ~PlantedRank() override { std::erase(rank_->communicators, this); }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  at::Device device() const override { return inner_->device(); }
  std::string transport() const override { return inner_->transport(); }
  int64_t bytes_sent() const override { return inner_->bytes_sent(); }
  void abort(const std::string& reason) override { inner_->abort(reason); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return inner_->split(color, key);
  }
  std::unique_ptr<Communicator> split_by(
      const std::function<SplitArguments(int)>& arguments) override {
    constexpr std::array kAxes = {"pipeline", "data", "tensor", "context", "sharding"};
    const std::string name =
        axis_.empty() ? kAxes.at(static_cast<size_t>(splits_)) : concat(axis_, ".", splits_);
    ++splits_;
    return std::make_unique<PlantedRank>(inner_->split_by(arguments), rank_, name);
  }

  Work start(std::span<const Operation> operations) override {
    std::vector<Work> works;
    std::vector<Operation> together;
    for (const Operation& each : operations) {
      if (is_meant(each)) {
        change(each, together, works);
      } else {
        together.push_back(each);
      }
    }
    if (!together.empty()) {
      works.push_back(inner_->start(together));
      release();
    }
    if (waits_for_nothing_) {
      waits_for_nothing_ = false;
      return {};
    }
    std::erase_if(works, [](const Work& work) { return !work.pending(); });
    if (works.empty()) return {};
    return Work(std::make_shared<Works>(std::move(works)));
  }

 private:
  bool is_meant(const Operation& each) {
    const PlantedDefect& defect = rank_->defect;
    if (size() == 1 || each.kind != defect.kind || !axis_.starts_with(defect.axis)) return false;
    const bool whole = defect.wrong == Wrong::kSkipped || each.kind == OperationKind::kBarrier;
    if (!whole && each.tensor().numel() < 2) return false;
    if (!defect.phase.empty() && defect.phase != operation_context().phase) return false;
    return rank_->seen++ == defect.which;
  }

  void change(const Operation& given, std::vector<Operation>& together, std::vector<Work>& works) {
    ++rank_->planted.times;
    rank_->planted.tensor = given.name.empty() ? operation_context().label : given.name;
    Operation changed = given;
    switch (rank_->defect.wrong) {
      case Wrong::kSkipped:
        return;
      case Wrong::kDoubled:
        together.push_back(given);
        break;
      case Wrong::kReordered:
        return hold(given, works);
      case Wrong::kCount:
        changed = half(given);
        break;
      case Wrong::kDtype:
        changed = converted(given);
        break;
      case Wrong::kRoot:
        changed.peer = (given.peer + 1) % size();
        break;
      case Wrong::kPartner:
        changed.peer = (given.peer + 1) % size();
        if (changed.peer == rank()) changed.peer = (changed.peer + 1) % size();
        break;
      case Wrong::kAxis:
        works.push_back(another().inner_->start({&changed, 1}));
        return;
      case Wrong::kReduction:
        changed.reduce = ReduceOp::kMax;
        break;
      case Wrong::kNotWaited:
        waits_for_nothing_ = true;
        break;
    }
    together.push_back(changed);
  }

  PlantedRank& another() const {
    for (PlantedRank* each : rank_->communicators) {
      if (each->size() == size() && each->axis_ != axis_ && !each->axis_.starts_with(axis_))
        return *each;
    }
    fail(ErrorCode::kInvalidArgument, "no other axis of ", axis_, " has ", size(), " ranks");
  }

  static at::Tensor narrowed(const at::Tensor& x, int64_t count) {
    return x.defined() ? x.view(-1).narrow(0, 0, count) : x;
  }
  Operation half(const Operation& given) const {
    const bool gathers = given.kind == OperationKind::kAllGather;
    const bool scatters = given.kind == OperationKind::kReduceScatter;
    const int64_t part = (gathers ? given.input : given.tensor()).numel() / 2;
    Operation changed = given;
    changed.output = narrowed(given.output, gathers ? part * size() : part);
    changed.input = narrowed(given.input, scatters ? part * size() : part);
    return changed;
  }
  static Operation converted(const Operation& given) {
    Operation changed = given;
    const at::ScalarType dtype = given.tensor().scalar_type() == at::kHalf ? at::kFloat : at::kHalf;
    const auto to = [&](const at::Tensor& x) {
      return x.defined() ? at::empty(x.sizes(), x.options().dtype(dtype)) : x;
    };
    changed.output = to(given.output);
    changed.input = to(given.input);
    return changed;
  }

  void hold(const Operation& given, std::vector<Work>& works) {
    class HeldWork final : public Work::Impl {
     public:
      HeldWork(std::shared_ptr<Rank> rank, std::shared_ptr<Rank::Held> held)
          : rank_(std::move(rank)), held_(std::move(held)) {}
      void wait() override {
        if (rank_->held == held_) PlantedRank::release(*rank_);
        held_->work.wait();
      }

     private:
      std::shared_ptr<Rank> rank_;
      std::shared_ptr<Rank::Held> held_;
    };
    rank_->held = std::make_shared<Rank::Held>(Rank::Held{this, given, rank_->planted.tensor});
    works.push_back(Work(std::make_shared<HeldWork>(rank_, rank_->held)));
  }
  void release() { release(*rank_); }
  static void release(Rank& rank) {
    if (rank.held == nullptr) return;
    const auto held = std::exchange(rank.held, nullptr);
    held->operation.name = held->name;
    held->work = held->by->inner_->start({&held->operation, 1});
  }

  const std::unique_ptr<Communicator> inner_;
  const std::shared_ptr<Rank> rank_;
  const std::string axis_;
  int splits_ = 0;
  bool waits_for_nothing_ = false;
};

}  // namespace

const char* name_of(Wrong wrong) {
  constexpr std::array kNames = {"skipped",     "doubled",       "reordered",     "wrong count",
                                 "wrong dtype", "wrong root",    "wrong partner", "wrong axis",
                                 "max for sum", "not waited for"};
  return kNames.at(static_cast<size_t>(wrong));
}

std::unique_ptr<Communicator> plant(std::unique_ptr<Communicator> world,
                                    const PlantedDefect& defect, Planted& planted) {
  return std::make_unique<PlantedRank>(std::move(world),
                                       std::make_shared<Rank>(Rank{defect, planted}), "");
}

}  // namespace tessera::testing
