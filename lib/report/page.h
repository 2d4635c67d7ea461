// SPDX-License-Identifier: MIT
#pragma once
// The report as one HTML file that needs nothing else: style, plots and tables are inside, scripts
// there are none.
#include <string>
#include <vector>

#include "lib/report/figures.h"

namespace tessera::report {

// tables in the order in which they appear below the plots. reload_s: the page loads itself again
// after so many seconds; 0: it does not.
std::string to_html(const Study& study, const std::vector<Figure>& figures,
                    const std::vector<Table>& tables, int reload_s = 0);

}  // namespace tessera::report
