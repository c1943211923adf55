// Package postgres x
package postgres
