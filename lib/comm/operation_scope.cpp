// SPDX-License-Identifier: MIT
#include "lib/comm/operation_scope.h"

#include <utility>

namespace tessera {
namespace {

OperationContext& of_this_thread() {
  thread_local OperationContext context;
  return context;
}

}  // namespace

const OperationContext& operation_context() { return of_this_thread(); }

void note_step(int64_t step) {
  of_this_thread().step = step;
  of_this_thread().told = true;
}

void note_output_folder(const std::string& folder) {
  of_this_thread().folder = folder;
  of_this_thread().told = true;
}

InPhase::InPhase(const char* phase) : outer_(std::exchange(of_this_thread().phase, phase)) {
  of_this_thread().told = true;
}

InPhase::~InPhase() { of_this_thread().phase = outer_; }

ForTensor::ForTensor(std::string_view label)
    : outer_(std::exchange(of_this_thread().label, label)) {}

ForTensor::~ForTensor() { of_this_thread().label = outer_; }

DataDecides::DataDecides(DecidedByData decided)
    : outer_(std::exchange(of_this_thread().decided, decided)) {}

DataDecides::~DataDecides() { of_this_thread().decided = outer_; }

}  // namespace tessera
