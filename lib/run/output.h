// SPDX-License-Identifier: MIT
#pragma once
// The output directory and its files.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/checkpoint/directory_lock.h"
#include "lib/settings/train_flags.h"
#include "tessera/metrics/event.h"
#include "tessera/metrics/sink.h"

namespace tessera::programs {

// Throws Error(kInvalidArgument) when the directory is not a directory, or holds a run that must
// not be overwritten. Writes nothing.
void check_output_directory(const TrainOptions& options);
// As check_output_directory(), and locks the directory. For the writing process, before anything is
// created or deleted. Throws Error(kDataLoss) when another job holds it or it is not writable.
std::unique_ptr<DirectoryLock> lock_output_directory(const TrainOptions& options);
// Deletes an earlier run's files with overwrite_output_dir. Throws Error(kDataLoss) on failure.
void prepare_output_directory(const TrainOptions& options, DirectoryLock& lock);

// True if people see standard output as it is written.
bool writes_to_terminal();

// The console, which also prints `found` (title and text), and the files named by --report_to.
// logging_steps: the option as a number.
std::vector<std::unique_ptr<metrics::Sink>> make_sinks(
    const TrainOptions& options, int64_t logging_steps,
    const std::vector<std::pair<std::string, std::string>>& found);

void write_text_file(const std::string& path, const std::string& text);  // throws Error(kDataLoss)

// Versions of the library, LibTorch, CUDA and the driver, and the build's commit.
void fill_versions(metrics::RunStartRecord& record);

}  // namespace tessera::programs
