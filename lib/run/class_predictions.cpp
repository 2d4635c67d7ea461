// SPDX-License-Identifier: MIT
#include "lib/run/class_predictions.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "lib/run/output.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/data/batch_stream.h"
#include "tessera/metrics/event.h"

namespace tessera::programs {
namespace {

// fp64 [rows of the loader's steps, classes] on the CPU, in row order; padding of the last batch is
// at the end.
at::Tensor all_probabilities(const DataLoader& loader, int64_t rows_of_rank, Strategy& strategy,
                             Communicator& data) {
  BatchStream batches(loader, data.device());
  std::vector<at::Tensor> steps;
  for (int64_t step = 0; step < loader.steps_per_epoch(); ++step) {
    steps.push_back(
        strategy
            .predict(batches.next(), [](const at::Tensor& scores,
                                        size_t) { return scores.to(at::kDouble).softmax(1); })
            .front());
  }
  const at::Tensor mine = at::stack(steps).contiguous();  // [steps, rows, classes]
  const at::Tensor all =
      at::empty({data.size(), mine.size(0), rows_of_rank, mine.size(2)}, mine.options());
  data.all_gather(all, mine).wait();
  return all.cpu().transpose(0, 1).reshape({-1, mine.size(2)});
}

}  // namespace

ClassPredictions predict_classes(const TokenTable& rows, DataLoaderOptions options,
                                 std::vector<std::string> names, Strategy& strategy,
                                 const DeviceMesh& mesh) {
  if (options.packing) options.pad_to = 0;
  options.packing = options.padding_free = false;
  const DataLoader loader(rows, options);
  const at::Tensor known =
      all_probabilities(loader, options.micro_batch_size, strategy, mesh.axis(Axis::kData));
  const auto classes = static_cast<size_t>(known.size(1));
  ClassPredictions result{.names = std::move(names)};
  for (size_t c = result.names.size(); c < classes; ++c) result.names.push_back(std::to_string(c));
  const double* probability = known.const_data_ptr<double>();
  for (int64_t row = 0; row < rows.size(); ++row, probability += classes) {
    result.labels.push_back(rows.row(row).label);
    result.predicted.push_back(std::max_element(probability, probability + classes) - probability);
    result.probabilities.insert(result.probabilities.end(), probability, probability + classes);
  }
  result.scores = metrics::classification_scores(result.labels, result.predicted,
                                                 static_cast<int64_t>(classes));
  return result;
}

void ClassPredictions::write(const std::string& directory) const {
  std::string table = "row,label,prediction";
  for (const std::string& name : names) table += concat(",", metrics::to_csv("p_" + name));
  table += "\n";
  const size_t classes = names.size();
  for (size_t row = 0; row < labels.size(); ++row) {
    table += concat(row, ",", metrics::to_csv(names[static_cast<size_t>(labels[row])]), ",",
                    metrics::to_csv(names[static_cast<size_t>(predicted[row])]));
    for (size_t c = 0; c < classes; ++c) {
      table += concat(",", metrics::to_csv(probabilities[row * classes + c]));
    }
    table += "\n";
  }
  write_text_file(directory + "/predictions.csv", table);
  JsonWriter json(/*indent=*/2);
  json.begin_object().field("rows", scores.total).field("accuracy", scores.accuracy);
  json.field("f1_macro", scores.f1_macro).field("f1_weighted", scores.f1_weighted);
  json.key("classes").begin_array();
  for (size_t c = 0; c < classes; ++c) {
    const metrics::ClassScore& of = scores.classes[c];
    json.begin_object().field("name", names[c]).field("precision", of.precision);
    json.field("recall", of.recall).field("f1", of.f1).field("support", of.support).end_object();
  }
  json.end_array().field("confusion", scores.confusion);
  if (classes == 2) {
    std::vector<double> second;
    for (size_t row = 0; row < labels.size(); ++row) second.push_back(probabilities[2 * row + 1]);
    const metrics::ClassThreshold best = metrics::best_threshold(labels, second);
    json.key("best_threshold").begin_object().field("class", names[1]);
    json.field("probability", best.threshold).field("f1", best.f1).end_object();
  }
  write_text_file(directory + "/scores.json", json.end_object().text() + "\n");
}

}  // namespace tessera::programs
