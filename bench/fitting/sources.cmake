# What answers, beside main.cpp: for the host's programs and tests (bench/CMakeLists.txt), and for the page (site/fit/CMakeLists.txt).
set(fitting_sources question.cpp model.cpp options.cpp training.cpp inference.cpp show.cpp json.cpp reader.cpp reader_code.cpp reader_words.cpp words.cpp
  generating.cpp images.cpp pipelines.cpp pipelines_words.cpp serving.cpp serving_words.cpp list.cpp)
list(TRANSFORM fitting_sources PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
