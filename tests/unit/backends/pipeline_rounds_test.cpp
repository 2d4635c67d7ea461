// SPDX-License-Identifier: MIT
// Messages between stages whose devices may, at any time, wait for all pending messages, as GPUs do
// that load a kernel. A message is pending from its send until it is received.
#include <ATen/ATen.h>

#include <map>

#include "backends/pipeline/stage_links.h"
#include "backends/pipeline/stage_schedule.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

// True if every stage finishes when each pass waits for all pending messages of its stage, with
// receives posted as late as allowed.
bool ends(const PipelineSchedule& schedule) {
  const int stages = schedule.stage_count();
  std::vector<StageSchedule> own;
  for (int stage = 0; stage < stages; ++stage) own.push_back(stage_schedule(schedule, stage));
  std::vector<size_t> slots(own.size());
  std::map<std::pair<size_t, size_t>, int> balance;  // by source and destination: sent - received
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t me = 0; me < own.size(); ++me) {
      const StageSchedule& one = own[me];
      if (slots[me] == one.slots.size()) continue;
      bool waits = false;
      for (size_t other = 0; other < own.size(); ++other) {
        if (other == me) continue;
        int posted = 0, sent = 0, received = 0;
        for (const auto& arrival : one.arrivals[other]) {
          const int due = one.has_rounds ? arrival.next_round : arrival.due;
          CHECK(due <= arrival.needed);
          posted += due <= static_cast<int>(slots[me]) ? 1 : 0;
          sent += arrival.sent < static_cast<int>(slots[other]) ? 1 : 0;
        }
        for (const auto& arrival : own[other].arrivals[me]) {
          const int due = own[other].has_rounds ? arrival.next_round : arrival.due;
          const bool mine = arrival.sent < static_cast<int>(slots[me]);
          received += mine && due > static_cast<int>(slots[other]) ? 1 : 0;
        }
        waits = waits || posted > sent || received > 0;
      }
      if (waits) continue;
      ++slots[me];
      moved = true;
    }
  }
  for (size_t me = 0; me < own.size(); ++me) {
    if (slots[me] < own[me].slots.size()) return false;
  }
  return true;
}

// Counts a rank's works that were not waited for.
class Pending final : public Communicator {
 public:
  explicit Pending(Communicator& inner) : inner_(inner) {}
  int count() const { return *count_; }

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  at::Device device() const override { return inner_.device(); }
  std::string transport() const override { return inner_.transport(); }
  int64_t bytes_sent() const override { return inner_.bytes_sent(); }
  void abort(const std::string& reason) override { inner_.abort(reason); }
  Work start(std::span<const Operation> operations) override {
    Work work = inner_.start(operations);
    return operations.front().is_message() ? counted(std::move(work)) : work;
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return inner_.split(color, key);
  }

 private:
  struct Counted final : Work::Impl {
    Counted(Work work, std::shared_ptr<int> pending) : inner(std::move(work)), count(pending) {
      ++*count;
    }
    void wait() override {
      inner.wait();
      --*count;
    }
    Work inner;
    std::shared_ptr<int> count;
  };
  Work counted(Work work) { return Work(std::make_shared<Counted>(std::move(work), count_)); }

  Communicator& inner_;
  std::shared_ptr<int> count_ = std::make_shared<int>(0);
};

}  // namespace

TEST_CASE("stages that wait in their slots for all messages never wait for each other") {
  for (int stages = 2; stages <= 5; ++stages) {
    for (int micro_batches = 1; micro_batches <= 13; ++micro_batches) {
      CAPTURE(stages, micro_batches);
      CHECK(ends(gpipe(stages, micro_batches)));
      CHECK(ends(one_f_one_b(stages, micro_batches)));
      for (int chunks : {2, 3}) {
        const auto schedule = interleaved_one_f_one_b(stages, micro_batches, chunks);
        CHECK(ends(schedule));
        CHECK(ends(forwards_of(schedule)));
      }
    }
  }
}

TEST_CASE("with chunks nothing is under way in a slot of a step with new shapes") {
  const PipelineSchedule schedule = interleaved_one_f_one_b(3, 7, 2);
  test::run_ranks(3, [&](Communicator& comm) {
    Pending pipeline(comm);
    WaitTimer timer(comm.device());
    StageLinks links(pipeline, timer, 2);
    links.connect(/*wraps_around=*/true, nullptr);
    const StageSchedule one = stage_schedule(schedule, comm.rank());
    int most = 0;
    for (int step = 0; step < 2; ++step) {
      links.begin(one, std::vector<std::vector<int64_t>>(7, {4, 5}));
      for (int slot = 0; slot < static_cast<int>(one.slots.size()); ++slot) {
        links.post(slot);
        const auto& [action, input, output, needed] = one.slots[static_cast<size_t>(slot)];
        if (step == 0) {
          test::require(pipeline.count() == 0, pipeline.count(), " messages in turn ", slot);
        } else {
          most = std::max(most, pipeline.count());
        }
        const double number = action.micro_batch + 10 * schedule.part(comm.rank(), action) +
                              (action.kind == PipelineAction::Kind::kForward ? 0 : 1000);
        if (input) {
          const int before = action.kind == PipelineAction::Kind::kForward ? -10 : 10;
          test::require(links.receive(slot).eq(number + before).all().item<bool>(), "slot ", slot);
        }
        if (output) links.send(slot, at::full({4, 5}, number));
      }
      links.finish();
      test::require(pipeline.count() == 0, pipeline.count(), " messages behind the step");
    }
    test::require(most > 0, "later steps do not overlap");
  });
}
