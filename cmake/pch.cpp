// Carries the precompiled header; see TesseraTargets.cmake.
