// SPDX-License-Identifier: MIT
#include <algorithm>

#include "lib/data/jinja/evaluator.h"

namespace tessera::jinja {

Loop::Loop(Values items, Test test) : items_(std::move(items)), test_(std::move(test)) {
  for (const Value& item : items_) extent_.add(item.extent());
}

size_t Loop::reach(size_t from) {
  while (from < items_.size() && test_ && !test_(items_[from])) ++from;
  return from;
}

bool Loop::next() {
  const size_t reached = after_ ? *after_ : reach(behind_);
  after_.reset();
  if (reached >= items_.size()) return false;
  ++index_;
  previous_ = current_;
  current_ = reached;
  behind_ = reached + 1;
  return true;
}

int64_t Loop::length() {
  if (length_) return *length_;
  // Decides now which remaining items pass, as where Python makes a list of them.
  const size_t from = after_ ? *after_ : behind_;
  if (test_) {
    Values left;
    for (size_t i = reach(from); i < items_.size(); i = reach(i + 1)) left.push_back(items_[i]);
    items_.resize(behind_);
    items_.insert(items_.end(), left.begin(), left.end());
    if (after_) after_ = behind_;
    test_ = nullptr;
  }
  length_ = index_ + 1 + static_cast<int64_t>(items_.size() - behind_);
  return *length_;
}

Value Loop::attribute(Evaluator& run, const std::string& name) {
  const auto after = [this] {
    if (!after_) after_ = reach(behind_);
    return *after_;
  };
  if (name == "index0") return index_;
  if (name == "index") return index_ + 1;
  if (name == "first") return index_ == 0;
  if (name == "last") return after() >= items_.size();
  if (name == "length") return length();
  if (name == "revindex") return length() - index_;
  if (name == "revindex0") return length() - index_ - 1;
  if (name == "depth") return int64_t{1};
  if (name == "depth0") return int64_t{0};
  if (name == "previtem") {
    return index_ == 0 ? Value::undefined("there is no previous item") : items_[previous_];
  }
  if (name == "nextitem") {
    return after() >= items_.size() ? Value::undefined("there is no next item") : items_[after()];
  }
  if (name == "cycle") {
    const int64_t index = index_;
    return std::make_shared<const Function>(
        name, [index](Evaluator& caller, const Arguments& given) {
          if (given.positional.empty()) caller.fail("loop.cycle needs something to cycle through");
          return given.positional[static_cast<size_t>(index) % given.positional.size()];
        });
  }
  if (name == "changed") {
    const std::weak_ptr<Loop> held = weak_from_this();
    return std::make_shared<const Function>(
        name, [held](Evaluator& caller, const Arguments& given) {
          const std::shared_ptr<Loop> loop = held.lock();
          if (!loop) caller.fail("loop.changed is called behind its loop");
          for (const Value& value : given.positional) caller.charge(value.extent().weight);
          const bool changed = loop->changed_ != given.positional;
          loop->changed_ = given.positional;
          return Value(changed);
        });
  }
  run.fail("loop has no attribute '", name, "'");
}

}  // namespace tessera::jinja
