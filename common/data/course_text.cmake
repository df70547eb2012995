# Writes the prose of INPUTS (a list of Markdown files) to OUTPUT: cmake -DOUTPUT=… -DINPUTS=… -P course_text.cmake
# Blocks that bench/publish fills are left out: a model that trains on this text must not change with its own results.
set(text "")
foreach(input IN LISTS INPUTS)
  file(READ "${input}" content)
  string(REGEX REPLACE "<!-- from [^>]*-->\n```[^`]*```\n" "" content "${content}")
  string(APPEND text "${content}")
endforeach()
file(WRITE "${OUTPUT}" "${text}")
