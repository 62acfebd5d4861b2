// Counts the words of a body, in C++: exceptions must not cross the ABI.
#include <komainu_handler.h>

#include <exception>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>

namespace {

std::string body_of(komainu_request *request) {
    std::string body;
    char piece[8192];
    for (;;) {
        auto len = komainu_read(request, piece, sizeof piece);
        if (len < 0)
            throw std::runtime_error(komainu_error(static_cast<int>(len)));
        if (len == 0)
            return body;
        body.append(piece, static_cast<size_t>(len));
    }
}

int handle(komainu_request *request, void *, void *) {
    try {
        std::istringstream words(body_of(request));
        std::map<std::string, int> counts;
        for (std::string word; words >> word;)
            counts[word]++;
        std::ostringstream answer;
        for (const auto &[word, count] : counts)
            answer << word << ' ' << count << '\n';
        const auto text = answer.str();
        return komainu_reply(request, 200, "text/plain; charset=utf-8", text.data(), text.size());
    } catch (const std::exception &error) {
        std::cerr << error.what() << std::endl;
        return 500;
    }
}

} // namespace

KOMAINU_HANDLER(.handle = handle)
