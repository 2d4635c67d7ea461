// SPDX-License-Identifier: MIT
#pragma once
// Child processes of a comparison's rows, each run once: results are recorded in the output
// directory and reused when the comparison is repeated.
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tessera::programs {

struct ChildResult {
  int exit_code = 0;  // 128 + n if ended by signal n
  double wall_s = 0;
  std::string message;      // last line of its log that reports an error
  bool taken_over = false;  // from an earlier call
};

class Children {
 public:
  // Reads the records of earlier calls. Throws Error(kDataLoss) when the directory is not writable.
  explicit Children(std::string directory);

  // Runs the program and waits, calling `tick` about ten times a second; output goes to
  // logs/<name>.log. A child is not run again if it succeeded or ran out of memory with the same
  // command, environment, `inputs` (other dependencies of its result) and bytes of `program`.
  // environment overrides this process's, which is passed without launcher variables unless
  // `keep_launcher`.
  struct Request {
    std::string name;
    std::vector<std::string> command;
    std::string program;              // path of the command's program
    std::vector<std::string> output;  // flags for output paths, not part of the key
    std::string inputs;
    std::string result = {};  // a successful run without this path is repeated; "": no check
    std::map<std::string, std::string> environment;
    bool keep_launcher = false;
    bool torchrun = false;  // torchrun starts it; the exit code is that of its first failed rank
  };
  ChildResult run(const Request& request, const std::function<void()>& tick);

 private:
  std::string key_of(const Request& request);
  void write_down(const std::string& key, const Request& request, const ChildResult& result);

  std::string directory_;
  struct Done {
    std::string key;
    ChildResult result;
  };
  std::map<std::string, Done> done_;             // by name
  std::map<std::string, std::string> versions_;  // of programs, by path
};

// By exit code, or killed, as the kernel does when memory runs out.
bool is_out_of_memory(const ChildResult& result);

// Folder of the running program.
std::string program_folder();
// Path of a program in PATH; "" if missing.
std::string find_in_path(const std::string& name);

}  // namespace tessera::programs
