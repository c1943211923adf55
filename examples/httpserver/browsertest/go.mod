module github.com/idem-go/idem/examples/httpserver/browsertest

go 1.26.0

require (
	github.com/chromedp/chromedp v0.23.1
	github.com/idem-go/idem v0.0.0
)

replace github.com/idem-go/idem => ../../..
