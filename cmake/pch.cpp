// SPDX-License-Identifier: MIT
// Carries the precompiled header; see TesseraTargets.cmake.
