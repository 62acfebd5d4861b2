<?php
// As stress.psgi.
$id = $_GET['id'];
header('Content-Type: text/plain');
header("X-Id: $id");
if ($_SERVER['REQUEST_METHOD'] === 'POST') {
    $content = file_get_contents('php://input');
    if (str_replace("$id\n", '', $content) !== '') {
        http_response_code(409);
    }
    echo strlen($content);
    return;
}
[$size, $chunks] = [(int) ($_GET['size'] ?? 0), (int) ($_GET['chunks'] ?? 1)];
$content = substr(str_repeat("$id\n", intdiv($size, strlen($id) + 1) + 1), 0, $size);
if ($chunks === 1) {
    header("Content-Length: $size");
    echo $content;
    return;
}
$step = intdiv($size, $chunks) + 1;
for ($at = 0; $at < $size; $at += $step) {
    echo substr($content, $at, $step);
    flush();
    usleep(1000);
}
