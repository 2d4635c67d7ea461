// SPDX-License-Identifier: MIT
// JSON lines of token ids for both tasks, and the table made of them.
#include "tessera/data/token_rows.h"
#include "tessera/data/token_table.h"
#include "tests/fuzz/readers/reader_fuzz.h"

using namespace tessera;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string path = fuzz::folder().write("rows.jsonl", fuzz::text_of(data, size));
  for (const Task task : {Task::kCausal, Task::kClassification}) {
    fuzz::accepts({ErrorCode::kDataLoss, ErrorCode::kInvalidArgument}, [&] {
      RowIssues issues;
      const TokenRows rows = read_token_rows(
          path, {.task = task, .vocab_size = 1000, .num_labels = 3, .max_seq_length = 5}, &issues);
      fuzz::accepts({}, [&] {
        const TokenTable table(rows.dataset);
        for (int64_t i = 0; i < table.size(); ++i) {
          const TokenRow row = table.row(i);
          fuzz::expect(!row.input_ids.empty() && row.input_ids.size() <= 5, "a row's length");
          for (size_t t = 0; t < row.input_ids.size(); ++t) {
            fuzz::expect(row.input_ids[t] >= 0 && row.input_ids[t] < 1000, "an id out of range");
            if (task == Task::kCausal) fuzz::expect(row.label_at(t) < 1000, "a label out of range");
          }
        }
      });
    });
  }
  return 0;
}
