// SPDX-License-Identifier: MIT
#pragma once
// The output directory and what goes into it.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/checkpoint/directory_lock.h"
#include "lib/settings/train_flags.h"
#include "tessera/metrics/event.h"
#include "tessera/metrics/sink.h"

namespace tessera::programs {

// Throws Error(kInvalidArgument) when the directory already holds a run and may not be overwritten,
// or is no directory. Writes nothing.
void check_output_directory(const TrainOptions& options);
// For the process that writes, before anything is created or deleted: the same, and locks it.
// Throws Error(kDataLoss) when another job has it, or nothing can be written there.
std::unique_ptr<DirectoryLock> lock_output_directory(const TrainOptions& options);
// With overwrite_output_dir removes the files of an earlier run. Throws Error(kDataLoss) when that
// fails.
void prepare_output_directory(const TrainOptions& options, DirectoryLock& lock);

// Whether people see standard output as it is written.
bool writes_to_terminal();

// Console always, which also says what was `found` (title and text); the files that --report_to
// names. logging_steps: of the option, a number.
std::vector<std::unique_ptr<metrics::Sink>> make_sinks(
    const TrainOptions& options, int64_t logging_steps,
    const std::vector<std::pair<std::string, std::string>>& found);

void write_text_file(const std::string& path, const std::string& text);  // Error(kDataLoss)

// Versions of the library, LibTorch, CUDA and the driver, and the commit this was built from.
void fill_versions(metrics::RunStartRecord& record);

}  // namespace tessera::programs
