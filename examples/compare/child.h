#pragma once
// Programs run as child processes with their output in a file.
#include <string>
#include <vector>

namespace tessera::programs {

struct ChildResult {
  int exit_code = 0;  // 128 + n when signal n ended it
  double wall_s = 0;
};

// Waits for the end. Standard output and error go to log_path; extra environment entries look like
// NAME=value. Throws Error(kInternal) when no process can be started.
ChildResult run_child(const std::vector<std::string>& command, const std::string& log_path,
                      const std::vector<std::string>& environment = {});

// The folder of the running program.
std::string program_folder();
// Path of a program in PATH; "" when there is none.
std::string find_in_path(const std::string& name);
// The last line of a log that reports an error, else its last line.
std::string last_error_line(const std::string& log_path);

}  // namespace tessera::programs
