# Writes INPUTS (a list of files) as C++ byte arrays to OUTPUT: cmake -DOUTPUT=… -DINPUTS=… -P embed.cmake
# File a/images-idx3-ubyte.gz becomes oomlab::data::embedded::images_idx3_ubyte_gz, a span of bytes. The arrays are written as strings:
# a compiler reads megabytes of those in a fraction of the time that lists of numbers take.
set(text "#include <cstddef>\n#include <span>\n\nnamespace oomlab::data::embedded {\n")
foreach(input IN LISTS INPUTS)
  get_filename_component(name "${input}" NAME)
  string(MAKE_C_IDENTIFIER "${name}" name)
  file(READ "${input}" bytes HEX)
  string(REGEX REPLACE "(................................)" "\\1\"\n\"" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" bytes "${bytes}")
  string(APPEND text "static constexpr unsigned char ${name}_bytes[] =\n\"${bytes}\";\n"
    "extern const std::span<const unsigned char> ${name};\n"
    "constinit const std::span<const unsigned char> ${name}(${name}_bytes, sizeof(${name}_bytes) - 1);  // without the string's 0\n")
endforeach()
file(WRITE "${OUTPUT}" "${text}}\n")
